//! The goals for starts, and what of them is met.

use crate::interval::Difference;
use crate::measure::{CPU_API_SERVER, CPU_NODE, CPU_OWN, NO_VOLUMES, ONE_BARE};
use crate::picture::sample;
use crate::samples::{Samples, short, table};

/// Pods on a node without netclaim, and on one that has an NRI plugin that does nothing instead; plain pods
/// on a node with netclaim, and pods with a claim.
pub const WHO: [&str; 4] = ["without", "nri", "plain", "netclaim"];

/// A goal: what is measured, the most that it may be, and what was measured.
struct Goal {
    what: &'static str,
    limit: f64,
    measured: Option<f64>,
    /// The interval of the measured difference.
    interval: Option<Difference>,
}

impl Goal {
    fn row(&self) -> Vec<String> {
        let verdict = match self.measured {
            None => "not measured".to_owned(),
            Some(measured) if measured <= self.limit => "met".to_owned(),
            Some(measured) => format!("missed by {}", short(measured - self.limit)),
        };
        let measured = match (&self.interval, self.measured) {
            (Some(interval), _) => interval.to_string(),
            (None, measured) => measured.map_or_else(|| "–".to_owned(), short),
        };
        vec![self.what.to_owned(), short(self.limit), measured, verdict]
    }
}

/// The table of goals. `pinned` says that control plane and node have processors of their own.
pub fn goals(samples: &Samples, pinned: bool) -> String {
    let [without, nri, plain, netclaim] = WHO;
    let starts = |who: &str, kind: &str| samples.values(who, &format!("{kind} ms"));
    let over = |who: &str, kind: &str| Difference::of(&starts(who, kind), &starts(without, kind));
    let by_round = |who: &str, what: &str| {
        Difference::by_round(&samples.by_round(who, what), &samples.by_round(without, what))
    };
    let difference = |what, limit, interval: Option<Difference>| Goal {
        what,
        limit,
        measured: interval.map(|interval| interval.by),
        interval,
    };
    let value = |what, limit, measured| Goal { what, limit, measured, interval: None };
    let percent = |who: &str, of: f64, what: &str| samples.median(who, what).map(|base| base * of / 100.0);
    // From the pod's node to Running.
    let on_node = |who: &str| {
        let at = |mark| samples.median(who, &sample(ONE_BARE, mark));
        Some(at("running")? - at("scheduled")?)
    };
    let own = on_node(netclaim).zip(on_node(without)).map(|(with, base)| with - base);
    let one_ms = format!("{ONE_BARE} ms");
    let mut all = vec![
        difference(
            "one by one, no volumes: p50 over a node without netclaim, ms",
            50.0,
            over(netclaim, ONE_BARE),
        ),
        value("of it from scheduled to Running, ms", 18.0, own),
        value("CPU of agent and parent for a pod's life, ms", 8.0, samples.median(netclaim, CPU_OWN)),
        difference("CPU of the node's parts more than without, ms", 20.0, by_round(netclaim, CPU_NODE)),
        difference(
            "a plain pod on a node with netclaim: p50 more, ms (1 %)",
            percent(without, 1.0, &one_ms).unwrap_or_default(),
            over(plain, ONE_BARE),
        ),
        difference(
            "a plain pod on a node with netclaim: CPU of the node's parts more, ms (1 %)",
            percent(without, 1.0, CPU_NODE).unwrap_or_default(),
            by_round(plain, CPU_NODE),
        ),
        difference(
            "a plain pod on a node with netclaim: CPU of the API server more, ms (1 %)",
            percent(without, 1.0, CPU_API_SERVER).unwrap_or_default(),
            by_round(plain, CPU_API_SERVER),
        ),
        value(
            "API requests of the agent for a pod's life",
            2.0,
            samples.median(netclaim, "requests of its own"),
        ),
        value(
            "anonymous memory of agent and parent before the pods, MiB",
            6.0,
            samples.median(netclaim, "of it anonymous before MiB"),
        ),
    ];
    if pinned {
        let base = percent(without, 10.0, &format!("{NO_VOLUMES} ms")).unwrap_or_default();
        let what = "20 at once, no volumes, control plane on other processors: p50 more, ms (10 %)";
        all.push(difference(what, base, by_round(netclaim, &format!("{NO_VOLUMES} ms"))));
    }
    let met = all.iter().filter(|goal| goal.measured.is_some_and(|measured| measured <= goal.limit)).count();
    let head = ["goal", "at most", "measured (95 % interval)", ""];
    let shown = |difference: Option<Difference>| {
        difference.map_or_else(|| "not measured".to_owned(), |difference| difference.to_string())
    };
    format!(
        "\nGoals: {met} of {} met\n\n{}\nNRI itself, by a plugin that does nothing: p50 more, {} ms; CPU of the node's parts more, {} ms\n",
        all.len(),
        table(&head, all.iter().map(Goal::row)),
        shown(over(nri, ONE_BARE)),
        shown(by_round(nri, CPU_NODE)),
    )
}
