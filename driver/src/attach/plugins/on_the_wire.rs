//! What happens on the network between an ADD and the use of what it has made: whether another host has an
//! address, who has it now, and whether the gateway answers.
//!
//! The pod's containers have not started yet. A failure here is one of the ADD: a DEL follows, and the ADD is
//! retried, by another address where there is one.

use std::net::IpAddr;
use std::time::Duration;

use netclaim_cni::{CniResult, ListName};
use tokio::time::Instant;

use super::{CniPlugins, Place};
use crate::attach::plan::Spec;
use crate::attach::record::Sandbox;
use crate::attach::{AddFailure, Cause, Failure};
use crate::links::InUse;

/// Delays between two looks for a gateway's answer: the first one, which doubles, and the longest one.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(500);

impl CniPlugins {
    /// Tells the neighbours which addresses the pod has now: they may know another pod by them.
    pub(super) async fn announce(&self, spec: &Spec, sandbox: &Sandbox, made: &CniResult) {
        if self.place != Place::Pod || ips(spec, sandbox, made).is_ok_and(|ips| ips.is_empty()) {
            return;
        }
        let announced = async { sandbox.open_netns()?.announce(spec.if_name.as_str()).await.map_err(of) };
        not_announced(announced.await);
    }

    /// Makes sure that nobody else has the addresses that an ADD has made, announces them, and waits for
    /// their gateways, as far as the attachment asks for that.
    pub(super) async fn prove_on_the_wire(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        made: &CniResult,
    ) -> Result<(), Failure> {
        if self.place != Place::Pod {
            return Ok(());
        }
        let (name, ips) = (spec.if_name.as_str(), ips(spec, sandbox, made)?);
        if spec.wire.probes && !ips.is_empty() {
            let netns = sandbox.open_netns()?;
            let found = netns.in_use(name, ips.clone()).await.map_err(of)?;
            if !found.is_empty() {
                return Err(in_use(spec.conflist.name(), found));
            }
            not_announced(netns.announce_probed(name, ips).await.map_err(of));
        }
        self.announce(spec, sandbox, made).await;
        if spec.wire.needs_gateway {
            self.wait_for_gateways(spec, sandbox, made).await?;
        }
        Ok(())
    }

    /// Says of a failed ADD whether another host has an address. A plugin that waits for the kernel's look
    /// for duplicates has its own words for it.
    pub(super) async fn explained(&self, spec: &Spec, sandbox: &Sandbox, failed: AddFailure) -> AddFailure {
        if self.place != Place::Pod || !spec.wire.probes || !failed.owes_del() {
            return failed;
        }
        let found = async { sandbox.open_netns()?.found_in_use(spec.if_name.as_str()).await.map_err(of) };
        match found.await {
            Ok(found) if !found.is_empty() => {
                AddFailure { failure: in_use(spec.conflist.name(), found), ..failed }
            }
            _ => failed,
        }
    }

    /// Waits until all gateways answer, for as long as plugins have for an ADD.
    async fn wait_for_gateways(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        made: &CniResult,
    ) -> Result<(), Failure> {
        let (list, name) = (spec.conflist.name(), spec.if_name.as_str());
        let attachment = Self::attachment(spec, &sandbox.id, Some(&sandbox.netns))?;
        let mut gateways: Vec<IpAddr> = made.ips_of(&attachment).filter_map(|ip| ip.gateway).collect();
        gateways.sort();
        gateways.dedup();
        if gateways.is_empty() {
            return Err(no_gateway(list));
        }
        let (until, mut delay) = (Instant::now() + self.timeout, FIRST_LOOK);
        // The namespace is not held meanwhile: it ends with its pod.
        loop {
            gateways = sandbox.open_netns()?.unknown_neighbours(name, gateways).await.map_err(of)?;
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

/// Returns the addresses of an attachment.
fn ips(spec: &Spec, sandbox: &Sandbox, made: &CniResult) -> Result<Vec<IpAddr>, Failure> {
    let attachment = CniPlugins::attachment(spec, &sandbox.id, Some(&sandbox.netns))?;
    Ok(made.ips_of(&attachment).map(|ip| ip.address.addr()).collect())
}

fn of(error: crate::links::Error) -> Failure {
    Failure::of(&error)
}

fn not_announced(announced: Result<(), Failure>) {
    if let Err(error) = announced {
        tracing::warn!(%error, "neighbours may not know the pod's addresses for a minute");
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
