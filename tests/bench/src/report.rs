//! Writes raw numbers to files, and makes a table of them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::protocol::Batch;
use crate::stats::{Ratio, percentile};
use crate::usage::Memory;

/// One batch with its circumstances.
pub(crate) struct Measured {
    pub(crate) workload: &'static str,
    pub(crate) lanes: usize,
    pub(crate) contestant: &'static str,
    pub(crate) round: usize,
    pub(crate) batch: Batch,
}

/// Memory of one contestant at one moment.
pub(crate) struct Held {
    pub(crate) contestant: &'static str,
    pub(crate) when: &'static str,
    pub(crate) memory: Memory,
}

/// Writes every number that was measured to `dir`.
pub(crate) fn write_raw(dir: &Path, measured: &[Measured], held: &[Held]) -> Result<()> {
    let mut ops = String::from("workload,at_once,contestant,round,add_ns,del_ns\n");
    let mut batches = String::from(
        "workload,at_once,contestant,round,ops,wall_ns,own_user_ns,own_sys_ns,plugins_user_ns,plugins_sys_ns\n",
    );
    for Measured { workload, lanes, contestant, round, batch } in measured {
        let Batch { wall_ns, own, children, .. } = batch;
        writeln!(
            batches,
            "{workload},{lanes},{contestant},{round},{},{wall_ns},{},{},{},{}",
            batch.add_ns.len(),
            own.user_ns,
            own.sys_ns,
            children.user_ns,
            children.sys_ns
        )?;
        for (add, del) in batch.add_ns.iter().zip(&batch.del_ns) {
            writeln!(ops, "{workload},{lanes},{contestant},{round},{add},{del}")?;
        }
    }
    let mut memory = String::from("contestant,when,rss_kib,anon_kib,peak_kib\n");
    for Held { contestant, when, memory: Memory { rss_kib, anon_kib, peak_kib } } in held {
        writeln!(memory, "{contestant},{when},{rss_kib},{anon_kib},{peak_kib}")?;
    }
    fs::write(dir.join("ops.csv"), ops)?;
    fs::write(dir.join("batches.csv"), batches)?;
    fs::write(dir.join("memory.csv"), memory)?;
    Ok(())
}

/// The contestants that the others are compared with.
const BARE: &str = "bare";
const LIBCNI: &str = "libcni";

/// The table of one workload at one concurrency.
pub(crate) fn table(measured: &[Measured], workload: &str, lanes: usize) -> Result<String> {
    let of = |contestant: &str| -> Vec<&Batch> {
        let mine = measured
            .iter()
            .filter(|m| m.workload == workload && m.lanes == lanes && m.contestant == contestant);
        mine.map(|m| &m.batch).collect()
    };
    let mut contestants: Vec<&str> = Vec::new();
    for m in measured {
        if !contestants.contains(&m.contestant) {
            contestants.push(m.contestant);
        }
    }
    let (bare, libcni) = (of(BARE), of(LIBCNI));
    let mut text = String::from(
        "| | ms each | ADD p50 | DEL p50 | both p50 | both p99 | CPU ms: own | plugins | time / bare | time / libcni | CPU / bare | CPU / libcni |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for contestant in contestants {
        let batches = of(contestant);
        let mut add: Vec<u64> = batches.iter().flat_map(|batch| batch.add_ns.iter().copied()).collect();
        let mut del: Vec<u64> = batches.iter().flat_map(|batch| batch.del_ns.iter().copied()).collect();
        let mut both: Vec<u64> = add.iter().zip(&del).map(|(add, del)| add + del).collect();
        // The median batch: one that met a busy moment of the machine does not move it.
        let each = |ns: &dyn Fn(&Batch) -> u64| {
            let mut each: Vec<u64> =
                batches.iter().map(|batch| ns(batch) / (batch.add_ns.len() as u64).max(1)).collect();
            ms(percentile(&mut each, 0.5))
        };
        let (wall, own, plugins) =
            (each(&|b| b.wall_ns), each(&|b| b.own.total()), each(&|b| b.children.total()));
        let ratio = |others: &[&Batch], figure: &dyn Fn(&Batch) -> u64| {
            let figures = |batches: &[&Batch]| -> Vec<f64> {
                batches.iter().map(|batch| figure(batch) as f64).collect()
            };
            let Ratio { median, low, high } = Ratio::of(&figures(&batches), &figures(others));
            format!("{median:.3} ({low:.3}–{high:.3})")
        };
        let time: &dyn Fn(&Batch) -> u64 = &|batch| batch.wall_ns;
        let cpu: &dyn Fn(&Batch) -> u64 = &|batch| batch.own.total() + batch.children.total();
        let ratios =
            [ratio(&bare, time), ratio(&libcni, time), ratio(&bare, cpu), ratio(&libcni, cpu)].join(" | ");
        writeln!(
            text,
            "| {contestant} | {wall} | {} | {} | {} | {} | {own} | {plugins} | {ratios} |",
            ms(percentile(&mut add, 0.5)),
            ms(percentile(&mut del, 0.5)),
            ms(percentile(&mut both, 0.5)),
            ms(percentile(&mut both, 0.99)),
        )?;
    }
    Ok(text)
}

/// The table of memory, a row per contestant.
pub(crate) fn memory_table(held: &[Held]) -> Result<String> {
    let mut text = String::from("| | when | resident MiB | of it private | peak |\n|---|---|---|---|---|\n");
    for Held { contestant, when, memory: Memory { rss_kib, anon_kib, peak_kib } } in held {
        writeln!(
            text,
            "| {contestant} | {when} | {} | {} | {} |",
            mib(*rss_kib),
            mib(*anon_kib),
            mib(*peak_kib)
        )?;
    }
    Ok(text)
}

fn ms(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000, ns / 1000 % 1000)
}

fn mib(kib: u64) -> String {
    format!("{}.{}", kib / 1024, kib % 1024 * 10 / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Cpu;

    #[test]
    fn a_contestant_is_compared_with_bare_and_libcni_of_the_same_round() {
        let batch = |wall_ns| Batch {
            wall_ns,
            add_ns: vec![wall_ns / 2],
            del_ns: vec![wall_ns / 2],
            own: Cpu { user_ns: wall_ns / 10, sys_ns: 0 },
            ..Batch::default()
        };
        let measured: Vec<Measured> = [("bare", 1_000_000), ("netclaim", 1_100_000), ("libcni", 2_200_000)]
            .into_iter()
            .flat_map(|(contestant, ns)| {
                (0..2).map(move |round| Measured {
                    workload: "null",
                    lanes: 1,
                    contestant,
                    round,
                    batch: batch(ns * (1 + round as u64)),
                })
            })
            .collect();
        let table = table(&measured, "null", 1).unwrap();
        let row = table.lines().find(|line| line.starts_with("| netclaim")).unwrap();
        assert!(row.starts_with("| netclaim | 1.100 | 0.550 |"), "{row}");
        assert!(row.contains("| 1.100 (1.100–1.100) | 0.500 (0.500–0.500) |"), "{row}");
    }
}
