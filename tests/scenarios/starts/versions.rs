//! Two versions of netclaim in turns on one node: what a change costs or saves.

use anyhow::{Context as _, Result, bail};
use netclaim_tests::{AGENT, Earlier, SYSTEM, Test};

use crate::contestants::Netclaim;
use crate::interval::Difference;
use crate::measure::{
    CPU_API_SERVER, CPU_CONTAINERD, CPU_KUBELET, CPU_NODE, CPU_OWN, CPU_PLUGINS, CPU_STARTED, GONE, ONE_BARE,
    ONE_TOKENS, Turn,
};
use crate::own::{count, kinds, log_marks, order, rounds};
use crate::pods::Pods;
use crate::samples::{Samples, table};

/// What each round has one value of.
const COSTS: [&str; 7] =
    [CPU_OWN, CPU_PLUGINS, CPU_CONTAINERD, CPU_STARTED, CPU_KUBELET, CPU_NODE, CPU_API_SERVER];

/// Has agents of this image run.
fn run_image(test: &Test<'_>, image: &str) -> Result<()> {
    test.cluster.kubectl(&["set", "image", "-n", SYSTEM, AGENT, &format!("*={image}")])?;
    test.cluster.agent_ready().with_context(|| format!("the agent of {image}, with the manifests of today"))
}

pub fn an_earlier_version_and_this_one_start_pods_in_turns(test: &Test<'_>) -> Result<()> {
    let Some(revision) = std::env::var("NETCLAIM_BENCH_FROM").ok().filter(|set| !set.is_empty()) else {
        return test.skip("it needs an earlier revision: make bench-ab FROM=REVISION");
    };
    let earlier = Earlier::build(test.cluster, &revision)?;
    let mut samples = Samples::new("ab", earlier.tag())?;
    let pods = Pods::of(test)?;
    log_marks(test)?;
    let (kinds, count) = (kinds(), count()?);
    for _ in 0..rounds(4)? {
        let round = samples.next_round();
        let both = [("old", earlier.agent_image()?), ("new", "localhost/netclaim-agent:dev".to_owned())];
        for (name, image) in order(round, both) {
            run_image(test, &image)?;
            eprintln!("         round {round}: {name} ({image})");
            let who = Netclaim::named(test, name)?;
            Turn { test, pods: &pods, samples: &mut samples, who: &who, round }.measure(&kinds, count)?;
            samples.save()?;
        }
    }
    let starts = kinds.iter().map(|kind| format!("{kind} ms")).chain([GONE.to_owned()]);
    let differences = starts.chain(COSTS.map(str::to_owned)).map(|what| {
        let difference = if [ONE_BARE, ONE_TOKENS].iter().any(|kind| what.starts_with(kind)) {
            let [new, old] = ["new", "old"].map(|who| samples.values(who, &what));
            Difference::of(&new, &old)
        } else {
            // The pods of a burst are slow together.
            let [new, old] = ["new", "old"].map(|who| samples.by_round(who, &what));
            Difference::by_round(&new, &old)
        };
        (what, difference)
    });
    let mut worse = Vec::new();
    let rows = differences.map(|(what, difference)| {
        let verdict = match difference {
            Some(difference) if difference.is_worse() => {
                worse.push(what.clone());
                "worse"
            }
            Some(difference) if difference.is_better() => "better",
            _ => "no difference is certain",
        };
        let shown = difference.map_or_else(|| "–".to_owned(), |difference| difference.to_string());
        let [old, new] = ["old", "new"].map(|who| samples.cell(who, &what));
        vec![what, old, new, shown, verdict.to_owned()]
    });
    let old = format!("{} (p50 / p90 / p99)", earlier.tag());
    let head = ["", old.as_str(), "this tree", "difference (95 % interval)", ""];
    let page = table(&head, rows.collect::<Vec<_>>());
    samples.publish("table.md", &page)?;
    if !worse.is_empty() {
        bail!("this tree is worse than {}: {}", earlier.tag(), worse.join("; "));
    }
    Ok(())
}
