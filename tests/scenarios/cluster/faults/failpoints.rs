//! The agent dies at each fail point of its code.

use std::time::Instant;

use anyhow::{Context as _, Result};
use netclaim_tests::{Failpoint, Test};

/// Seconds until the agent must have reached a fail point of a pod's start or end.
const REACHED: u64 = 20;

/// Whether the agent reaches the fail point when a pod ends, and not when it starts.
fn is_of_the_end(point: Failpoint) -> bool {
    use Failpoint::*;
    matches!(point, SandboxStopped | DelDue | Deleted | UnprepareAsked | Forgotten)
}

pub fn an_agent_that_dies_anywhere_refuses_no_claim_and_leaves_nothing(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for point in Failpoint::ALL {
        life_with(test, &network, point).with_context(|| format!("the agent died at {}", point.name()))?;
    }
    Ok(())
}

/// A pod comes and goes, and the agent dies once meanwhile.
fn life_with(test: &Test<'_>, network: &str, point: Failpoint) -> Result<()> {
    let name = point.name().to_lowercase();
    let reached = || test.cluster.dies_at(point, REACHED);
    let at_end = is_of_the_end(point);
    if !at_end {
        test.cluster.arm(point)?;
    }
    if point == Failpoint::TakenOver {
        // The next agent dies when it takes over.
        test.cluster.kill_agent()?;
    }
    let begin = Instant::now();
    test.start_pod(&name, network)?;
    let up = begin.elapsed();
    test.claim_was_not_refused(&name)?;
    if at_end {
        test.cluster.arm(point)?;
    } else {
        reached()?;
    }
    let begin = Instant::now();
    test.delete_pod(&name)?;
    let gone = begin.elapsed();
    if at_end {
        reached()?;
    }
    eprintln!(
        "         {:16} up {:4.1} s, down {:4.1} s",
        point.name(),
        up.as_secs_f64(),
        gone.as_secs_f64()
    );
    test.node_has_leases(0)
}
