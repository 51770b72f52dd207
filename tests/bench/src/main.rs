//! Measures netclaim's CNI runtime, libcni and bare plugins side by side: `make bench`.
//!
//! ```text
//! compare ──orders──> contestant (resident, one each, in a host network namespace of its own) ──exec──> plugins
//! ```
//!
//! * The contestants run the same plugin binaries with the same input on the same machine, in turn (A B C, B
//!   C A, …), round after round: changes of the machine affect all of them. Ratios are computed for each
//!   round.
//! * Each contestant measures the time of ADD and DEL of the whole chain. The kernel counts the CPU time of
//!   the contestant and, separately, of the processes that it has waited for.
//! * Every number goes to files; the table on standard output has no others.

mod bare;
mod host;
mod netclaim;
mod protocol;
mod report;
mod stats;
mod usage;
mod workload;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use netclaim_cni::Runtime;

use crate::host::{BIN_DIR, Worker};
use crate::report::{Held, Measured};
use crate::workload::{LANES, workloads};

/// The state directory of contestants without state.
const NO_STATE: &str = "/run/no-state";

/// Attachments between the two readings of memory.
const MANY: usize = 10_000;

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Measure everything.
    Compare(Compare),
    /// Be measured: attach and detach as standard input says.
    Contestant {
        kind: Kind,
        /// Directory of the plugins.
        bin_dir: PathBuf,
        /// Directory for what the kind keeps, if it keeps anything.
        state: PathBuf,
    },
}

#[derive(clap::Args)]
struct Compare {
    /// Directory of the reference plugins.
    #[arg(long)]
    plugins: PathBuf,
    /// A static busybox.
    #[arg(long)]
    busybox: PathBuf,
    /// The contestant built on libcni.
    #[arg(long)]
    libcni: PathBuf,
    /// Directory for the numbers.
    #[arg(long)]
    out: PathBuf,
    /// How often each contestant gets its turn.
    #[arg(long, default_value_t = 16)]
    rounds: usize,
    /// Something to note about the machine, `what=value`.
    #[arg(long = "fact")]
    facts: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Plugins from a plain loop.
    Bare,
    /// The runtime alone.
    Netclaim,
    /// The agent's work for each attachment: `CniPlugins` with its cache, locks, plugins' environment and
    /// journal.
    NetclaimAgent,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Task::Compare(compare) => compare.run(),
        Task::Contestant { kind, bin_dir, state } => match kind {
            Kind::Bare => protocol::serve(|order| bare::attach(&bin_dir, order)),
            Kind::Netclaim => {
                let contestant = netclaim::Contestant::new(Runtime::new(vec![bin_dir])?)?;
                protocol::serve(|order| contestant.attach(order))
            }
            Kind::NetclaimAgent => {
                let contestant = netclaim::Contestant::new(netclaim::Agent::new(bin_dir, &state)?)?;
                protocol::serve(|order| contestant.attach(order))
            }
        },
    }
}

/// A contestant at work.
struct Contestant {
    name: &'static str,
    worker: Worker,
    /// ClaimNetworks in the order of [`workloads`].
    lists: Vec<String>,
}

impl Compare {
    fn run(self) -> Result<()> {
        host::isolate()?;
        host::link_plugins(&self.plugins, &self.busybox)?;
        let dir = &self.out;
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let facts = self.facts()?;
        fs::write(dir.join("machine.txt"), &facts)?;

        let mut contestants = self.contestants()?;
        let mut held = Vec::new();
        note_memory(&mut contestants, "idle", 0, &mut held)?;
        let measured = self.rounds(&mut contestants)?;
        note_memory(
            &mut contestants,
            "after 10,000 more attachments, 16 at once",
            MANY.div_ceil(LANES),
            &mut held,
        )?;
        for contestant in contestants {
            contestant.worker.stop()?;
        }

        report::write_raw(dir, &measured, &held)?;
        let mut text = String::new();
        for workload in workloads("") {
            for lanes in [1, LANES] {
                let table = report::table(&measured, workload.name, lanes)?;
                text += &format!("\n### {}: {}, {lanes} at once\n\n{table}", workload.name, workload.about);
            }
        }
        text += &format!("\n### Memory\n\n{}", report::memory_table(&held)?);
        fs::write(dir.join("summary.md"), &text)?;
        println!("{facts}{text}\nRaw numbers: {}", dir.display());
        Ok(())
    }

    fn contestants(&self) -> Result<Vec<Contestant>> {
        let me = env::current_exe()?;
        let (me, libcni) = (text(&me)?, text(&self.libcni)?);
        let commands: [(&'static str, Vec<&str>); 5] = [
            ("bare", vec![me, "contestant", "bare", BIN_DIR, NO_STATE]),
            ("netclaim", vec![me, "contestant", "netclaim", BIN_DIR, NO_STATE]),
            ("netclaim agent", vec![me, "contestant", "netclaim-agent", BIN_DIR, "/run/state-agent"]),
            ("libcni", vec![libcni, "-path", BIN_DIR, "-cache", "/run/cache-libcni"]),
            (
                "libcni GOMAXPROCS=1",
                vec![libcni, "-path", BIN_DIR, "-cache", "/run/cache-libcni-1", "-plugins-gomaxprocs", "1"],
            ),
        ];
        commands
            .into_iter()
            .map(|(name, command)| {
                let lists = workloads(name).iter().map(|workload| workload.list.to_string()).collect();
                Ok(Contestant { name, worker: Worker::start(name, &command)?, lists })
            })
            .collect()
    }

    fn rounds(&self, contestants: &mut [Contestant]) -> Result<Vec<Measured>> {
        let mut measured = Vec::new();
        // Round 0 warms up.
        for round in 0..=self.rounds {
            for (number, workload) in workloads("").iter().enumerate() {
                for lanes in [1, LANES] {
                    for Contestant { name, worker, lists } in contestants.iter_mut() {
                        let list = lists.get(number).context("no such workload")?;
                        let batch = worker
                            .run(list, lanes, workload.ops_per_lane(lanes))
                            .with_context(|| format!("{name}, {}", workload.name))?;
                        if round > 0 {
                            measured.push(Measured {
                                workload: workload.name,
                                lanes,
                                contestant: name,
                                round,
                                batch,
                            });
                        }
                    }
                }
            }
            contestants.rotate_left(1);
            eprint!("\rround {round} of {}", self.rounds);
        }
        eprintln!();
        contestants.sort_by_key(|contestant| contestant.name);
        measured.sort_by_key(|measured| measured.contestant);
        Ok(measured)
    }

    fn facts(&self) -> Result<String> {
        let file = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
        let cpuinfo = file("/proc/cpuinfo")?;
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mut facts = vec![
            format!("kernel={}", file("/proc/sys/kernel/osrelease")?.trim()),
            format!("cpus={}", std::thread::available_parallelism()?),
            format!("cpu={}", model.map_or("unknown", |(_, model)| model)),
            format!("rounds={}", self.rounds),
        ];
        facts.extend(self.facts.iter().cloned());
        Ok(facts.join("\n") + "\n")
    }
}

/// Records each contestant's memory after `ops` null attachments in each container.
fn note_memory(
    contestants: &mut [Contestant],
    when: &'static str,
    ops: usize,
    held: &mut Vec<Held>,
) -> Result<()> {
    for Contestant { name, worker, lists } in contestants {
        let batch = worker.run(lists.first().context("no workload")?, LANES, ops)?;
        held.push(Held { contestant: name, when, memory: batch.memory });
    }
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}
