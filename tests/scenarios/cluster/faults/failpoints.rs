//! The agent dies at each of the places that its code names.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Failpoint, Test, eventually};

/// Seconds until the place must have been reached that a pod passes on its way up, or down.
const REACHED: u64 = 20;

/// Whether a pod passes the place on its way down, and not on its way up.
fn is_on_the_way_down(point: Failpoint) -> bool {
    use Failpoint::*;
    matches!(point, SandboxStopped | DelDue | Deleted | UnprepareAsked | Forgotten)
}

pub fn wherever_the_agent_dies_no_claim_is_refused_and_nothing_is_left(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    for point in Failpoint::ALL {
        life_with(test, &network, point).with_context(|| format!("the agent died at {}", point.name()))?;
    }
    Ok(())
}

/// A pod comes and goes, and the agent dies once on the way.
fn life_with(test: &Test<'_>, network: &str, point: Failpoint) -> Result<()> {
    let name = point.name().to_lowercase();
    let reached = || {
        eventually(REACHED, "the agent comes to it", || {
            ensure!(!test.cluster.is_armed(point), "has the agent's image fail points (NETCLAIM_FEATURES)?");
            Ok(())
        })
    };
    let down = is_on_the_way_down(point);
    if !down {
        test.cluster.arm(point)?;
    }
    if point == Failpoint::TakenOver {
        // Dies on its way to the next one.
        test.cluster.kill_agent()?;
    }
    let begin = Instant::now();
    test.pod(&name, network)?;
    test.runs_with(&name, &["net1"])?;
    let up = begin.elapsed();
    test.claim_was_not_refused(&name)?;
    if down {
        test.cluster.arm(point)?;
    } else {
        reached()?;
    }
    let begin = Instant::now();
    test.delete_pod(&name)?;
    let gone = begin.elapsed();
    if down {
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
