//! Runs scenarios on one cluster, with the command line and the output of `cargo test`.
//!
//! `$NETCLAIM_TEST_CLUSTER` ([`Lane`] has others) is the folder of a cluster that keeps running; it is
//! started if it does not run. By default the suite starts a new cluster and ends it. `$NETCLAIM_IMAGE` is an
//! image archive, instead of building one. `$NETCLAIM_PART` is a part of the scenarios: those that may run
//! `beside` others or those that run `alone`, or those of a module, such as `faults`, or all but these,
//! `not-faults`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::audit::{Access, AuditLog};
use crate::cluster::{Cluster, project};
use crate::deaths::services_run;
use crate::pools::NodePools;
use crate::quiet;
use crate::test::{LABEL, Skipped, Test};
use crate::wait::eventually;

/// How many scenarios run at once: they mostly wait.
const AT_ONCE: usize = 4;
/// The variable that chooses a part of the scenarios.
const PART: &str = "NETCLAIM_PART";

/// What a scenario does.
type Body = Box<dyn Fn(&Test<'_>) -> Result<()> + Send + Sync>;

/// A test with the name of its function: modules, then a sentence.
pub struct Scenario {
    name: &'static str,
    alone: bool,
    measures: bool,
    body: Body,
}

impl Scenario {
    /// A scenario that may run beside others.
    pub fn beside<F: Fn(&Test<'_>) -> Result<()> + Send + Sync + 'static>(body: F) -> Self {
        Self { name: name_of::<F>(), alone: false, measures: false, body: Box::new(body) }
    }

    /// A scenario that disturbs the node, the agent or other scenarios' devices.
    pub fn alone<F: Fn(&Test<'_>) -> Result<()> + Send + Sync + 'static>(body: F) -> Self {
        Self { alone: true, ..Self::beside(body) }
    }

    /// A scenario that measures time: no other runs, in no lane.
    pub fn quiet<F: Fn(&Test<'_>) -> Result<()> + Send + Sync + 'static>(body: F) -> Self {
        Self { measures: true, ..Self::alone(body) }
    }
}

/// Returns a function's path without the crate.
fn name_of<F>() -> &'static str {
    let path = std::any::type_name::<F>();
    path.split_once("::").map_or(path, |(_, name)| name)
}

/// Scenarios from functions: `scenarios![beside: a, b; alone: c; quiet: d]`.
#[macro_export]
macro_rules! scenarios {
    ($($how:ident: $($scenario:ident),+ $(,)?);+ $(;)?) => {
        vec![$($($crate::suite::Scenario::$how($scenario)),+),+]
    };
}

/// What scenarios run on.
pub struct Lane {
    /// Its name.
    pub name: &'static str,
    /// How many nodes the cluster has.
    pub nodes: usize,
    /// The environment variable with the folder of a cluster that keeps running.
    pub cluster: &'static str,
}

/// Runs the scenarios that the command line selects, on one node.
pub fn run(scenarios: Vec<Scenario>) -> ExitCode {
    run_on(&Lane { name: "cluster", nodes: 1, cluster: "NETCLAIM_TEST_CLUSTER" }, scenarios)
}

/// As [`run`], in another lane.
pub fn run_on(lane: &Lane, mut scenarios: Vec<Scenario>) -> ExitCode {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert(AT_ONCE);
    let part = std::env::var(PART).ok().filter(|part| !part.is_empty());
    match part.as_deref() {
        None => {}
        Some(part @ ("alone" | "beside")) => scenarios.retain(|scenario| scenario.alone == (part == "alone")),
        Some(part) => {
            let module = part.strip_prefix("not-").unwrap_or(part);
            let is_of = |scenario: &Scenario| scenario.name.split("::").next() == Some(module);
            if !scenarios.iter().any(is_of) {
                eprintln!("{PART} is {part:?}: no scenario is of a module {module}");
                return ExitCode::FAILURE;
            }
            scenarios.retain(|scenario| is_of(scenario) == (module == part));
        }
    }
    scenarios.sort_by_key(|scenario| (scenario.alone, scenario.measures));
    let wanted = |scenario: &Scenario| !args.is_filtered_out(&Trial::test(scenario.name, || Ok(())));
    let none = !scenarios.iter().any(wanted);
    if let Some(filter) = args.filter.as_deref().filter(|_| none && !args.list) {
        eprintln!("no scenario has {filter:?} in its name: --list shows the names");
        return ExitCode::FAILURE;
    }
    if args.list || none {
        let trials = scenarios.into_iter().map(|scenario| Trial::test(scenario.name, || Ok(())));
        return libtest_mimic::run(&args, trials.collect()).exit_code();
    }
    let (dir, keep) = match std::env::var_os(lane.cluster) {
        Some(dir) => (PathBuf::from(dir), true),
        None => (format!("/var/tmp/netclaim-test-{}", std::process::id()).into(), false),
    };
    let started = Cluster::start(&dir, lane.nodes).and_then(|cluster| {
        forget_earlier_tests(&cluster)?;
        Ok((NodePools::watch(&cluster)?, cluster))
    });
    let stage = match started {
        Ok((pools, cluster)) => Arc::new(Stage { cluster, pools, turn: RwLock::new(()) }),
        Err(error) => {
            eprintln!("no cluster to test on: {error:#}");
            finish(&dir, keep, true);
            return ExitCode::FAILURE;
        }
    };
    let trial = |(number, scenario): (usize, Scenario)| {
        let stage = Arc::clone(&stage);
        Trial::ignorable_test(scenario.name, move || stage.perform(number, &scenario))
    };
    let conclusion = libtest_mimic::run(&args, (1..).zip(scenarios).map(trial).collect());
    let is_whole = args.filter.is_none() && args.skip.is_empty();
    let name = part.map_or_else(|| lane.name.to_owned(), |part| format!("{}-{part}", lane.name));
    if is_whole && let Err(error) = note_accesses(&stage.cluster, &name) {
        eprintln!("cannot note what netclaim asked the API server for: {error:#}");
    }
    if finish(&dir, keep, conclusion.has_failed()) { conclusion.exit_code() } else { ExitCode::FAILURE }
}

/// Writes down what netclaim has asked the API server for, when all scenarios of a lane or its part have run:
/// the test `rights` compares it with what the manifests grant.
fn note_accesses(cluster: &Cluster, name: &str) -> Result<()> {
    let accesses = AuditLog::from_the_beginning(cluster).accesses()?;
    let lines = accesses.iter().map(|access| {
        let Access { account, group, resource, verb } = access;
        format!("{account} {} {resource} {verb}\n", if group.is_empty() { "core" } else { group })
    });
    let folder = project("target/rights");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join(name), lines.collect::<String>())?)
}

/// Ends the cluster unless `keep` is set, and keeps its logs after a failure. Returns whether that worked.
fn finish(dir: &Path, keep: bool, failed: bool) -> bool {
    if !keep && let Err(error) = Cluster::stop(dir) {
        eprintln!("the cluster cannot be stopped: {error:#}");
        return false;
    }
    if failed {
        eprintln!("logs: {}/log (pods: log/node/pods)", dir.display());
    } else if !keep {
        let _ = std::fs::remove_dir_all(dir);
    }
    true
}

fn forget_earlier_tests(cluster: &Cluster) -> Result<()> {
    cluster.repair()?;
    cluster.kubectl(&[
        "delete",
        "namespaces,claimnetworks,addresspools,deviceclasses",
        "-l",
        LABEL,
        "--timeout=60s",
    ])?;
    eventually(20, "the agent serves metrics", || cluster.deaths().forget(cluster))
}

/// What the scenarios of a lane share.
struct Stage {
    cluster: Cluster,
    pools: NodePools,
    /// For scenarios that run alone.
    turn: RwLock<()>,
}

impl Stage {
    /// Runs one scenario when its turn comes.
    fn perform(&self, number: usize, scenario: &Scenario) -> Result<Completion, Failed> {
        let (_alone, _beside);
        if scenario.alone {
            _alone = self.turn.write().unwrap_or_else(PoisonError::into_inner);
        } else {
            _beside = self.turn.read().unwrap_or_else(PoisonError::into_inner);
        }
        let _turn =
            quiet::turn(&quiet::lock_file(), scenario.measures).map_err(|error| format!("{error:#}"))?;
        let begin = Instant::now();
        let result = self.run_and_check(number, scenario);
        eprintln!("{:6.1} s  {}", begin.elapsed().as_secs_f64(), scenario.name);
        match result {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Skipped>() {
                Some(skipped) => Ok(Completion::ignored_with(skipped)),
                None => Err(format!("{error:#}").into()),
            },
        }
    }

    /// Runs a scenario in a new namespace, and checks what it left behind.
    fn run_and_check(&self, number: usize, scenario: &Scenario) -> Result<()> {
        let cluster = &self.cluster;
        let test = Test::begin(cluster, number)?;
        let result = (scenario.body)(&test).and_then(|()| self.pools.offer_what_is_free(cluster));
        let failure = result.as_ref().err().filter(|error| !error.is::<Skipped>());
        // What the cluster says is of the time of the failure.
        let failure = failure.map(|error| (format!("{error:#}"), test.report()));
        let died =
            cluster.deaths().check(cluster).and_then(|()| services_run(cluster)).context("after the test");
        let repair = || if scenario.alone { cluster.repair() } else { Ok(()) };
        let end = || test.end().and_then(|()| test.nodes_are_clean()).context("after the test");
        if let Some((error, report)) = failure {
            // The repair comes first: without a kubelet, say, the scenario's pods could not be deleted.
            let (_, _) = (repair(), end());
            let died = died.err().map(|died| format!("{died:#}\n")).unwrap_or_default();
            bail!("{error}\n{died}{report}");
        }
        // Leftovers are looked for before the repair, because a new agent would clean up. Nodes without power
        // are left out.
        let lost_power = cluster.nodes().len() < cluster.all_nodes().len();
        let (ended, repaired) = (end(), repair());
        // A kubelet looks once a minute for claims whose pods are gone.
        let recovered = match repaired {
            Ok(()) if lost_power => test.nodes_are_clean_within(150).context("after power is back"),
            repaired => repaired,
        };
        let pools = self.pools.check().context("after the test");
        died.and(ended).and(recovered).and(pools).and(result)
    }
}
