//! What happens on the network between an ADD and the use of what it has made: whether another host has an
//! address, who has it now, and whether the gateway answers.
//!
//! The pod's containers have not started yet. A failure here is one of the ADD: a DEL follows, and the ADD is
//! retried, by another address where there is one.

use std::net::IpAddr;
use std::time::Duration;

use netclaim_cni::{CniResult, ListName, error_chain};
use tokio::time::Instant;

use super::{CniPlugins, Place};
use crate::attach::plan::Spec;
use crate::attach::record::Sandbox;
use crate::attach::{AddFailure, Cause, Failure};
use crate::links::{InUse, Netns};

/// Delays between two looks for a gateway's answer: the first one, which doubles, and the longest one.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

impl CniPlugins {
    /// Has an ADD of a pod end when its addresses can be used: nobody else has them, the neighbours know
    /// them, and the gateways answer, as far as the attachment asks for that.
    pub(super) async fn on_the_wire(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        added: Result<CniResult, AddFailure>,
    ) -> Result<CniResult, AddFailure> {
        if self.place != Place::Pod {
            return added;
        }
        match added {
            Ok(result) => match self.use_addresses(spec, sandbox, &result).await {
                Ok(()) => Ok(result),
                Err(failure) => Err(AddFailure { last_good: Some(result), ..failure.into() }),
            },
            Err(failed) if spec.wire.probes && failed.owes_del() => {
                // The plugin may have waited for the kernel, which has found that another host has an address.
                let found = async { namespace(sandbox)?.found_in_use(spec.if_name.as_str()).await.map_err(of) };
                let found = found.await.ok().filter(|found| !found.is_empty());
                let failure = found.map(|found| in_use(spec.conflist.name(), found));
                Err(AddFailure { failure: failure.unwrap_or(failed.failure), ..failed })
            }
            Err(failed) => Err(failed),
        }
    }

    async fn use_addresses(&self, spec: &Spec, sandbox: &Sandbox, result: &CniResult) -> Result<(), Failure> {
        let attachment = Self::attachment(spec, &sandbox.id, Some(&sandbox.netns))?;
        let (list, name) = (spec.conflist.name(), spec.if_name.as_str());
        let ips: Vec<IpAddr> = result.ips_of(&attachment).map(|ip| ip.address.addr()).collect();
        if spec.wire.probes && !ips.is_empty() {
            let netns = namespace(sandbox)?;
            let found = netns.in_use(name, ips.clone()).await.map_err(of)?;
            if !found.is_empty() {
                return Err(in_use(list, found));
            }
            not_announced(netns.announce_probed(name, ips.clone()).await);
        }
        if !ips.is_empty() {
            let announced = async {
                let netns = Netns::open(&sandbox.netns)?;
                if netns.id() == sandbox.netns_id { netns.announce(name).await } else { Ok(()) }
            };
            not_announced(announced.await);
        }
        if spec.wire.needs_gateway {
            let gateways = result.ips_of(&attachment).filter_map(|ip| ip.gateway);
            self.wait_for_gateways(spec, sandbox, gateways.collect()).await?;
        }
        Ok(())
    }

    /// Waits until all gateways answer, for as long as plugins have for an ADD.
    async fn wait_for_gateways(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        mut gateways: Vec<IpAddr>,
    ) -> Result<(), Failure> {
        let (list, name) = (spec.conflist.name(), spec.if_name.as_str());
        gateways.sort();
        gateways.dedup();
        if gateways.is_empty() {
            return Err(no_gateway(list));
        }
        let (until, mut delay) = (Instant::now() + self.timeout, FIRST_LOOK);
        // The namespace is not held meanwhile: it ends with its pod.
        loop {
            gateways = namespace(sandbox)?.unknown_neighbours(name, gateways).await.map_err(of)?;
            if gateways.is_empty() {
                return Ok(());
            }
            if Instant::now() + delay >= until {
                return Err(unanswered(list, &gateways, self.timeout));
            }
            tokio::time::sleep(delay).await;
            delay = (2 * delay).min(LONGEST_LOOK);
        }
    }
}

/// Opens the sandbox's network namespace.
pub(super) fn namespace(sandbox: &Sandbox) -> Result<Netns, Failure> {
    let netns = Netns::open(&sandbox.netns).map_err(of)?;
    if netns.id() == sandbox.netns_id {
        Ok(netns)
    } else {
        Err(Failure::new("another network namespace is at the path of the pod's"))
    }
}

fn of(error: crate::links::Error) -> Failure {
    Failure::of(&error)
}

fn not_announced(announced: Result<(), crate::links::Error>) {
    if let Err(error) = announced {
        let error = error_chain(&error);
        tracing::warn!(error, "neighbours may not know the pod's addresses for a minute");
    }
}

fn in_use(list: &ListName, found: Vec<InUse>) -> Failure {
    let named = found.iter().map(|InUse { ip, by }| match by {
        Some(mac) => format!("{ip} (MAC address {mac})"),
        None => format!("{ip} (MAC address unknown)"),
    });
    let message = format!(
        "another host on network {list} has {}, so the pod does not use it: take it from that host, or leave it out of the addresses \
         that the network gives to pods",
        named.collect::<Vec<_>>().join(", ")
    );
    Failure { cause: Cause::AddressInUse, in_use: found, ..Failure::new(message) }
}

fn unanswered(list: &ListName, gateways: &[IpAddr], waited: Duration) -> Failure {
    let named = gateways.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
    let message = format!(
        "gateway {named} of network {list} has not answered (ARP, neighbour discovery) for {} s, and the pod needs it: see whether the \
         gateway is up, and whether the uplink and its VLAN lead to it",
        waited.as_secs()
    );
    Failure { cause: Cause::GatewayUnreachable, ..Failure::new(message) }
}

fn no_gateway(list: &ListName) -> Failure {
    let message = format!(
        "the plugins of network {list} have named no gateway, and the pod needs one that answers: give the addresses a gateway, or do not \
         require it"
    );
    Failure { cause: Cause::GatewayUnreachable, is_permanent: true, ..Failure::new(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_the_address_and_the_host() {
        let list: ListName = "netclaim-n".parse().unwrap();
        let found = [("10.9.0.7", Some("02:00:00:00:00:99")), ("fd09::7", None)];
        let found = found.map(|(ip, by)| InUse { ip: ip.parse().unwrap(), by: by.map(str::to_owned) });
        let failure = in_use(&list, found.to_vec());
        assert_eq!((failure.cause, failure.is_permanent), (Cause::AddressInUse, false));
        assert_eq!(failure.in_use, found);
        let start = "another host on network netclaim-n has 10.9.0.7 (MAC address 02:00:00:00:00:99), \
             fd09::7 (MAC address unknown), so the pod";
        assert!(failure.message.starts_with(start), "{}", failure.message);
    }

    #[test]
    fn a_gateway_that_does_not_answer_may_do_so_later_but_none_never_does() {
        let list: ListName = "netclaim-n".parse().unwrap();
        let failure = unanswered(&list, &["10.9.0.1".parse().unwrap()], Duration::from_secs(40));
        assert!(failure.message.starts_with("gateway 10.9.0.1 of network netclaim-n has not answered"));
        assert!(!failure.is_permanent && no_gateway(&list).is_permanent);
    }
}
