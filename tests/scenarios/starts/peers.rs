//! Plain pods, Multus, DRANET and netclaim in turns on the same node. While one has its turn, the others do
//! not run.

use anyhow::{Result, bail};
use netclaim_tests::Test;

use crate::contestants::{Contestant, Netclaim, Plain};
use crate::daemon::{Programs, versions};
use crate::dranet::Dranet;
use crate::faults::faults_table;
use crate::measure::{KINDS, Turn};
use crate::multus::Multus;
use crate::own::{away, away_table, count, order, rounds, summarize};
use crate::pods::Pods;
use crate::samples::Samples;

const ALL: [&str; 4] = ["plain", "multus", "dranet", "netclaim"];

/// Gives each contestant a turn; in every second round in the opposite order.
fn in_turns(
    test: &Test<'_>,
    samples: &mut Samples,
    round: usize,
    who: &[&str],
    mut turn: impl FnMut(&mut Samples, &dyn Contestant) -> Result<()>,
) -> Result<()> {
    let programs = Programs::build()?;
    let logs = samples.dir().to_owned();
    for who in order(round, who.iter().copied()) {
        eprintln!("         round {round}: {who}");
        if who == "netclaim" {
            test.cluster.agent_back()?;
        } else if test.cluster.agent_pid().is_ok() {
            test.cluster.agent_away()?;
        }
        match who {
            "plain" => turn(samples, &Plain("plain"))?,
            "multus" => turn(samples, &Multus::new(test, &programs, &logs)?)?,
            // A link that comes back from a pod is not published again at once.
            "dranet" => turn(samples, &Dranet::new(test, &programs, 2 * count()?, &logs)?)?,
            "netclaim" => turn(samples, &Netclaim::new(test)?)?,
            other => bail!("no contestant {other}"),
        }
        samples.save()?;
    }
    test.cluster.agent_back()
}

pub fn the_peers_start_pods_in_turns(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("peers", "starts")?;
    let pods = Pods::of(test)?;
    let count = count()?;
    for _ in 0..rounds(2)? {
        let round = samples.next_round();
        in_turns(test, &mut samples, round, &ALL, |samples, who| {
            Turn { test, pods: &pods, samples, who, round }.measure(&KINDS, count)
        })?;
    }
    summarize(test, &samples, &ALL, &versions()?)
}

/// Gives each peer a turn in each round, after a pair of pods that do not count.
fn disturbed(test: &Test<'_>, name: &str, disturb: impl Fn(&mut Turn<'_>) -> Result<()>) -> Result<Samples> {
    let mut samples = Samples::new("peers", name)?;
    let pods = Pods::of(test)?;
    for _ in 0..rounds(1)? {
        let round = samples.next_round();
        in_turns(test, &mut samples, round, &ALL[1..], |samples, who| {
            let mut turn = Turn { test, pods: &pods, samples, who, round };
            turn.warm_up()?;
            disturb(&mut turn)
        })?;
    }
    Ok(samples)
}

pub fn the_peers_survive_faults(test: &Test<'_>) -> Result<()> {
    let samples = disturbed(test, "faults", |turn| turn.faults())?;
    samples.publish("table.md", &faults_table(&samples, &ALL[1..]))
}

pub fn the_peers_come_back_after_a_pod_was_created(test: &Test<'_>) -> Result<()> {
    let samples = disturbed(test, "away", away)?;
    samples.publish("table.md", &away_table(&samples, &ALL[1..]))
}
