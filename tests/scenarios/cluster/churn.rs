//! Pods come and go at random while the programs that they need die. The seed is printed.

use std::collections::VecDeque;
use std::env;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use netclaim_tests::{Test, eventually};

/// Pods that are started, unless `$NETCLAIM_CHURN` says how many.
const PODS: usize = 12;
/// Pods that exist at the same time.
const AT_ONCE: usize = 8;

/// Seconds until a kubelet has retried a call during which the agent died.
const RETRY: u64 = 150;

/// A random generator: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    /// Takes the seed from `$NETCLAIM_SEED`, or from the clock if `$NETCLAIM_CHURN` is set.
    fn new() -> Result<Self> {
        let seed = match (env::var("NETCLAIM_SEED"), env::var_os("NETCLAIM_CHURN")) {
            (Ok(seed), _) => seed.parse().context("NETCLAIM_SEED is not a number")?,
            (Err(_), Some(_)) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
            (Err(_), None) => 1,
        };
        eprintln!("         churn: NETCLAIM_SEED={seed}");
        Ok(Self(seed))
    }

    /// Returns a number below `limit` (SplitMix64).
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

pub fn pods_come_and_go_while_agent_runtime_and_kubelet_die(test: &Test<'_>) -> Result<()> {
    let mut dice = Dice::new()?;
    let pods = match env::var("NETCLAIM_CHURN") {
        Ok(pods) => pods.parse().context("NETCLAIM_CHURN is not a number")?,
        Err(_) => PODS,
    };
    let networks = [test.macvlan("a")?, test.macvlan("b")?];
    let mut there = VecDeque::new();
    for n in 0..pods {
        if there.len() == AT_ONCE {
            remove(test, &mut there, &mut dice)?;
        }
        let name = format!("p{n}");
        test.pod(&name, &networks[usize::try_from(dice.below(2))?])?;
        there.push_back(name);
        match dice.below(12) {
            // Fails if it is still dead.
            0..4 => drop(test.cluster.kill_agent()),
            4 => {
                test.cluster.service("kill", "runtime")?;
                test.cluster.service("start", "runtime")?;
            }
            5 => test.cluster.service("restart", "kubelet").map(drop)?,
            6 | 7 => remove(test, &mut there, &mut dice)?,
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(dice.below(400)));
    }
    // The remaining pods have started with their networks. A kubelet that has just started refuses claims
    // until its drivers have registered, and retries after 60 to 90 s.
    for name in &there {
        eventually(RETRY, &format!("pod {name} runs"), || test.runs(name))?;
        test.began_with(name, &["net1"])?;
    }
    test.kubectl(&["delete", "pods", "--all", "--timeout=180s"])?;
    eventually(RETRY, "nothing is left on the node", || test.cluster.node().is_clean(&Default::default()))
}

/// Deletes one of the pods, whatever it is doing.
fn remove(test: &Test<'_>, there: &mut VecDeque<String>, dice: &mut Dice) -> Result<()> {
    let Some(name) = there.remove(usize::try_from(dice.below(u64::try_from(there.len().max(1))?))?) else {
        return Ok(());
    };
    // A running pod has started with its network.
    if test.get("pod", &name)?["status"]["phase"] == "Running" {
        test.began_with(&name, &["net1"])?;
    }
    let how: &[&str] = match dice.below(3) {
        0 => &["--grace-period=0", "--force"],
        _ => &[],
    };
    test.kubectl(&[&["delete", "pod", &name, "--wait=false"], how].concat()).map(drop)
}
