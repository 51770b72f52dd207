//! What the loop knows, for `--dump-state`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::State;
use crate::leasing::{Phase, Supply};
use crate::status::named;

impl State {
    /// Returns a JSON object.
    pub(super) fn shown(&self, now: Instant) -> Value {
        let mut pools: BTreeMap<String, [usize; 3]> = BTreeMap::new();
        for block in self.blocks.all().values() {
            let [live, pending, deleting] = pools.entry(block.spec.key().to_string()).or_default();
            *match block.phase {
                Phase::Live => live,
                Phase::Pending => pending,
                Phase::Deleting => deleting,
            } += 1;
        }
        let report = self.report.borrow();
        let pools: BTreeMap<String, Value> = pools
            .into_iter()
            .map(|(pool, [live, pending, deleting])| {
                (pool, json!({"blocks": live, "blocksToBeCreated": pending, "blocksBeingDeleted": deleting}))
            })
            .collect();
        let addresses: BTreeMap<String, Value> = report
            .totals
            .iter()
            .map(|(pool, totals)| {
                let [size, leased, used, free] = [totals.size, totals.leased, totals.used, totals.free];
                (pool.to_string(), json!({"size": size, "leased": leased, "used": used, "free": free}))
            })
            .collect();
        let short: BTreeMap<String, String> = report
            .supply
            .iter()
            .filter_map(|(network, supply)| match supply {
                Supply::Free | Supply::OnlyReserved => None,
                Supply::Exhausted(nodes) => Some((network.to_string(), named(nodes.iter()))),
                Supply::PoolMissing(pool) => Some((network.to_string(), format!("no AddressPool {pool}"))),
            })
            .collect();
        let again: BTreeMap<&String, u64> = self
            .delayed
            .iter()
            .map(|(object, until)| (object, until.saturating_duration_since(now).as_secs()))
            .collect();
        json!({
            "listed": {"addressBlocks": self.synced.blocks, "addressLeases": self.synced.leases, "networks": self.has_demand},
            "nodes": self.nodes.len(),
            "pools": pools,
            "addresses": addresses,
            "leases": self.leases.all().len(),
            "networksWithoutAddressesOn": short,
            "nodesGoneForGood": named(self.gone.iter()),
            "requestsThatWait": self.of_blocks.queue.len() + self.of_leases.queue.len(),
            "requestsThatRun": self.of_blocks.running.len() + self.of_leases.running.len(),
            "secondsUntilRequestsAreRepeated": again,
            "secondsUntilPlanned": self.due.map(|due| due.saturating_duration_since(now).as_secs()),
            "leavingBlocks": report.leaving.iter().map(|leaving| &leaving.remains).collect::<Vec<_>>(),
        })
    }
}
