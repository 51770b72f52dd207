//! The contestants' workloads.

use serde_json::{Value, json};

/// The host's link that macvlan interfaces hang on.
pub(crate) const UPLINK: &str = "up0";

/// The number of containers, each with a network namespace; the higher of the two concurrencies.
pub(crate) const LANES: usize = 16;

/// The folder of IPAM data, in memory, so that no disk is measured.
const IPAM_DIR: &str = "/run/ipam";

/// A network, and the size of a batch of it.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) about: &'static str,
    pub(crate) list: Value,
    /// Attachments in a batch one at a time; a batch of [`LANES`] at once makes as many in all, but one each
    /// at least.
    pub(crate) ops: usize,
}

impl Workload {
    /// Attachments per container in a batch of `lanes` containers.
    pub(crate) fn ops_per_lane(&self, lanes: usize) -> usize {
        (2 * self.ops).div_ceil(lanes).min(self.ops)
    }
}

/// The workloads for `contestant`, whose addresses are separate from the others'.
pub(crate) fn workloads(contestant: &str) -> [Workload; 3] {
    let ipam = |subnet: &str| json!({"type": "host-local", "dataDir": format!("{IPAM_DIR}/{contestant}"), "ranges": [[{"subnet": subnet}]]});
    let list = |name: &str, plugins: Value| json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
    [
        Workload {
            name: "null",
            about: "one plugin that prints its input and ends (`cat` of a static busybox): what is left is the runtime",
            list: list(
                "null",
                json!([{
                    "type": "cat",
                    "interfaces": [{"name": "net1", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/c0"}],
                    "ips": [{"address": "10.20.0.2/16", "gateway": "10.20.0.1", "interface": 0}],
                }]),
            ),
            ops: 40,
        },
        Workload {
            name: "macvlan",
            about: "macvlan with host-local",
            list: list(
                "macvlan",
                json!([
                    {"type": "macvlan", "master": UPLINK, "mode": "bridge", "ipam": ipam("10.20.0.0/16")},
                ]),
            ),
            ops: 10,
        },
        Workload {
            name: "chain",
            about: "bridge with host-local, tuning, bandwidth",
            list: list(
                "chain",
                json!([
                    {"type": "bridge", "bridge": "br0", "ipam": ipam("10.21.0.0/16")},
                    {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
                    {"type": "bandwidth", "ingressRate": 1_000_000_000, "ingressBurst": 100_000_000},
                ]),
            ),
            ops: 6,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_of_one_size_however_many_run_at_once() {
        for workload in workloads("x") {
            assert_eq!(workload.ops_per_lane(1), workload.ops);
            assert!(workload.ops_per_lane(LANES) >= 1);
            assert!(workload.ops_per_lane(LANES) * LANES <= 2 * workload.ops + LANES);
        }
    }
}
