//! The addresses that nodes need so that pods can be placed there that wait for nothing else. Pure.

use netclaim_allocation::{Judgement, Lack};
use netclaim_api::attributes;
use netclaim_kubernetes::quantity::ONE;

use crate::demand::{Need, Needs};

/// The most nodes that get addresses for pods that another node could serve: the scheduler has some reason
/// against that one.
const OTHERS: usize = 4;

/// Returns what nodes need for so many pods that want the same.
pub(super) fn of(judgement: &Judgement, pods: usize) -> Needs {
    let is_addresses = |lack: &Lack| lack.capacity == attributes::ADDRESSES;
    let mut short: Vec<_> =
        judgement.short.iter().filter(|(_, lacks)| lacks.iter().all(is_addresses)).collect();
    let missing = |lack: &Lack| lack.wanted.0.saturating_sub(lack.free.0);
    short.sort_by_key(|(_, lacks)| lacks.iter().map(missing).max());
    let pods = if judgement.serving.is_empty() {
        short.truncate(pods);
        pods.div_ceil(short.len().max(1))
    } else {
        short.truncate(OTHERS);
        1
    };
    let number = |amount: i128| u128::try_from(amount / ONE).unwrap_or_default();
    let of_node = |(node, lacks): &(String, Vec<Lack>)| {
        let needs = lacks.iter().filter_map(|lack| {
            let used = number(lack.total.0.saturating_sub(lack.free.0));
            let wanted = number(lack.wanted.0).saturating_mul(pods as u128);
            Some(((lack.network.as_deref()?.parse().ok()?, node.clone()), Need { used, wanted }))
        });
        needs.collect::<Vec<_>>()
    };
    short.into_iter().flat_map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use netclaim_allocation::{Amount, DeviceId};

    use super::*;

    fn lack(node: &str, capacity: &str, wanted: i128, (free, total): (i128, i128)) -> (String, Vec<Lack>) {
        let device =
            DeviceId { driver: "netclaim.dev".into(), pool: node.into(), device: "net-storage".into() };
        let [wanted, free, total] = [wanted, free, total].map(|amount| Amount(amount * ONE));
        let (network, capacity) = (Some("storage".to_owned()), capacity.to_owned());
        let lack = Lack { device, network, capacity, wanted, total, free, holders: Vec::new() };
        (node.to_owned(), vec![lack])
    }

    fn needs(judgement: &Judgement, pods: usize) -> Vec<(String, u128, u128)> {
        let needs = of(judgement, pods).into_iter();
        needs.map(|((_, node), Need { used, wanted })| (node, used, wanted)).collect()
    }

    fn need(node: &str, used: u128, wanted: u128) -> (String, u128, u128) {
        (node.to_owned(), used, wanted)
    }

    #[test]
    fn one_pod_needs_addresses_on_the_node_that_lacks_the_fewest() {
        let mut judgement = Judgement::default();
        judgement.short = vec![
            lack("a", "addresses", 9, (2, 6)),
            lack("b", "addresses", 9, (6, 6)),
            lack("c", "bandwidth", 2, (1, 1)),
        ];
        assert_eq!(needs(&judgement, 1), [need("b", 0, 9)]);
        assert_eq!(needs(&judgement, 5), [need("a", 4, 27), need("b", 0, 27)], "pods are spread");
        assert_eq!(needs(&Judgement::default(), 5), []);
    }

    #[test]
    fn if_the_scheduler_does_not_take_a_node_that_could_serve_some_others_get_addresses() {
        let nodes: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        let mut judgement = Judgement::default();
        judgement.short = nodes.iter().map(|node| lack(node, "addresses", 9, (6, 6))).collect();
        judgement.serving = vec!["full".into()];
        assert_eq!(needs(&judgement, 100), ["n0", "n1", "n2", "n3"].map(|node| need(node, 0, 9)));
    }
}
