//! From the settings of an attachment to CNI's capability arguments.

use netclaim_cni::{BandwidthArg, CapabilityArgs, PortMappingArg};
use serde_json::{Map, Value};

use crate::conflist::declares;
use crate::{AttachmentConfig, Bandwidth, Invalid, PortMapping, Quantity, Setting};

/// Returns the capability arguments that `config` asks for. `granted` is the bandwidth in bit/s that the
/// scheduler charged for the device: the most that `config` may ask for, and the limit of a direction for
/// which it asks nothing.
///
/// # Errors
/// Names the first field that no plugin of the conflist takes, or the rate that is more than was granted.
pub(crate) fn capability_args(
    config: &AttachmentConfig,
    conflist: &Map<String, Value>,
    granted: Option<Quantity>,
) -> Result<CapabilityArgs, Invalid> {
    // Destructured, so that a new setting cannot be forgotten here.
    let AttachmentConfig {
        interface_name: _,
        ips,
        replica_ips: _,
        mac,
        bandwidth,
        port_mappings,
        default_route: _,
        primary: _,
        args: _,
        parameters: _,
    } = config;
    let needs = |setting: Setting| {
        let name = setting.as_str();
        let problem =
            || format!("no plugin of the network takes it: one needs \"capabilities\": {{{name:?}: true}}");
        if declares(conflist, name) { Ok(()) } else { Err(Invalid::new(name, problem())) }
    };
    // A rate is compared with the grant first.
    let asked = config.settings().map(|(_, setting)| setting).filter(|setting| setting.is_capability());
    asked.filter(|setting| *setting != Setting::Bandwidth).try_for_each(needs)?;
    let limits = match bandwidth {
        Some(asked) => {
            let beyond = granted.map(|granted| asked.beyond(granted)).unwrap_or_default();
            if let Some(problem) = beyond.into_iter().next() {
                return Err(problem);
            }
            needs(Setting::Bandwidth)?;
            Some(Bandwidth { ingress: asked.ingress.or(granted), egress: asked.egress.or(granted) })
        }
        None => granted.filter(|_| declares(conflist, "bandwidth")).map(Bandwidth::both),
    };
    Ok(CapabilityArgs {
        bandwidth: limits.map(bandwidth_arg),
        ips: Some(ips.clone()).filter(|ips| !ips.is_empty()),
        mac: *mac,
        port_mappings: Some(port_mappings.iter().map(port_mapping_arg).collect())
            .filter(|mappings: &Vec<_>| !mappings.is_empty()),
        ..CapabilityArgs::default()
    })
}

impl Bandwidth {
    /// Returns the rates that are more than was granted; paths are relative to the configuration.
    pub fn beyond(&self, granted: Quantity) -> Vec<Invalid> {
        let rates = [("bandwidth.ingress", self.ingress), ("bandwidth.egress", self.egress)];
        let beyond =
            rates.into_iter().filter_map(|(field, rate)| Some((field, rate.filter(|rate| *rate > granted)?)));
        let problem = |(field, rate)| {
            let problem = format!(
                "{rate} is more than the {granted} that the claim was granted: raise capacity.requests.bandwidth"
            );
            Invalid::new(field, problem)
        };
        beyond.map(problem).collect()
    }
}

/// The bandwidth plugin refuses a rate without a burst, so each rate gets a burst of a tenth of a second.
/// Older versions of the plugin have 32 bits for it.
fn bandwidth_arg(limits: Bandwidth) -> BandwidthArg {
    let rate = |limit: Option<Quantity>| limit.map(Quantity::value).filter(|rate| *rate > 0);
    let burst = |rate: u64| (rate / 10).clamp(1_000_000, u64::from(u32::MAX) / 2);
    let (ingress_rate, egress_rate) = (rate(limits.ingress), rate(limits.egress));
    BandwidthArg {
        ingress_rate,
        ingress_burst: ingress_rate.map(burst),
        egress_rate,
        egress_burst: egress_rate.map(burst),
    }
}

fn port_mapping_arg(mapping: &PortMapping) -> PortMappingArg {
    let PortMapping { host_port, container_port, protocol, host_ip } = *mapping;
    let protocol = Some(protocol.as_str().to_owned());
    PortMappingArg { host_port, container_port, protocol, host_ip }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Allow;

    #[test]
    fn every_setting_is_allowed_and_reaches_the_plugin_by_its_name() {
        for setting in Setting::ALL {
            let name = setting.as_str();
            let value = match setting {
                Setting::Ips => json!(["10.0.0.5/24"]),
                Setting::Mac => json!("02:00:00:00:00:01"),
                Setting::Bandwidth => json!({"ingress": "1M", "egress": "1M"}),
                Setting::PortMappings => json!([{"hostPort": 8080, "containerPort": 80}]),
                Setting::DefaultRoute | Setting::Primary => json!(true),
            };
            let allow: Allow = serde_json::from_value(json!({name: {}})).expect(name);
            assert!(allow.allows(setting), "{name}");
            let config: AttachmentConfig = serde_json::from_value(json!({name: value})).expect(name);
            let conflist = json!({"plugins": [{"type": "any", "capabilities": {name: true}}]});
            let args = capability_args(&config, conflist.as_object().expect("an object"), None).expect(name);
            let args = Map::from(args);
            let expected: &[&str] = if setting.is_capability() { &[name] } else { &[] };
            assert_eq!(args.keys().collect::<Vec<_>>(), expected);
        }
    }
}
