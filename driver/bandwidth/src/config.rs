//! The limits that a configuration asks for.

use serde::Deserialize;

use netclaim_bandwidth::{Limit, Limits};
use netclaim_plugin::{Config, Failure};

/// The keys of rates and bursts.
pub(crate) const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rates {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
}

#[derive(Deserialize)]
struct RuntimeConfig {
    bandwidth: Option<Rates>,
}

/// Reads the limits. The plugin's own keys count for a direction that the capability does not set.
pub(crate) fn limits(config: &Config) -> Result<Limits, Failure> {
    let capability = config.field::<RuntimeConfig>("runtimeConfig")?;
    let capability = capability.and_then(|config| config.bandwidth).unwrap_or_default();
    let limit = |direction: &str, (rate, burst): (Option<u64>, Option<u64>)| match (rate, burst) {
        (None, None) => {
            let own = |key: &str| config.field(&format!("{direction}{key}"));
            Limit::new(direction, own("Rate")?, own("Burst")?)
        }
        (rate, burst) => Limit::new(direction, rate, burst),
    };
    Ok(Limits {
        ingress: limit("ingress", (capability.ingress_rate, capability.ingress_burst))?,
        egress: limit("egress", (capability.egress_rate, capability.egress_burst))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: &str) -> Result<Limits, String> {
        let json = format!(r#"{{"cniVersion": "1.1.0", {config}}}"#);
        let parsed = Config::parse(json.as_bytes()).and_then(|config| limits(&config));
        parsed.map_err(|failure| failure.to_string())
    }

    fn limit(direction: &str, rate: u64, burst: Option<u64>) -> Option<Limit> {
        Limit::new(direction, Some(rate), burst).expect("is valid")
    }

    #[test]
    fn the_plugins_own_keys_count_for_a_direction_that_the_runtime_does_not_set() {
        let limits = parse(
            r#""ingressRate": 80, "egressRate": 80, "egressBurst": 80,
               "runtimeConfig": {"bandwidth": {"egressRate": 160, "egressBurst": 8}, "mac": "x"}"#,
        );
        let limits = limits.expect("parses");
        assert_eq!(limits.ingress, limit("ingress", 80, None));
        assert_eq!(limits.egress, limit("egress", 160, Some(8)));
    }

    #[test]
    fn zero_or_null_does_not_limit() {
        for config in [
            r#""name": "n""#,
            r#""egressRate": 0, "egressBurst": 0"#,
            r#""runtimeConfig": null, "egressRate": null"#,
        ] {
            assert_eq!(parse(config).expect("parses"), Limits::default(), "{config}");
        }
    }
}
