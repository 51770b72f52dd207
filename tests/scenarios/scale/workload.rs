//! The pods that come and go on simulated nodes. Pure, and the same for the same seed.
//!
//! Eight hours with a quiet and a busy half. One arrival in ten is a burst of 4 to 16 pods on one node within
//! half a minute, which gives half of all pods. 40 % of the arrivals live for 5 minutes, 40 % for an hour
//! and 20 % for 4 hours, exponentially distributed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::TAU;
use std::time::Duration;

use fastrand::Rng;

/// The time in which pods come.
pub const DAY: Duration = Duration::from_secs(8 * 3600);
/// Pods on one node at once.
pub const MOST: usize = 30;
/// The part of arrivals that are bursts.
const BURSTS: f64 = 0.1;
/// The time in which the pods of a burst come.
const BURST: f64 = 30.0;
/// The shortest life of a pod, in seconds.
const SHORTEST: f64 = 10.0;

/// A pod that will come.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// When it comes.
    pub at: Duration,
    /// How long it stays.
    pub life: Duration,
}

/// Returns the arrivals of each node, in order of time.
pub fn arrivals(nodes: usize, pods: usize, seed: u64) -> Vec<VecDeque<Arrival>> {
    let mut rng = Rng::with_seed(seed);
    let mut groups: Vec<Vec<Arrival>> = Vec::new();
    let mut made = 0;
    while made < pods {
        let size = if rng.f64() < BURSTS { rng.usize(4..=16) } else { 1 }.min(pods - made);
        made += size;
        let begin = time_of_day(&mut rng);
        let mean = match rng.u8(0..10) {
            0..4 => 300.0,
            4..8 => 3600.0,
            _ => 4.0 * 3600.0,
        };
        let mut group: Vec<Arrival> = (0..size)
            .map(|_| {
                let delay = if size > 1 { rng.f64() * BURST } else { 0.0 };
                let life = (-mean * (1.0 - rng.f64()).ln()).clamp(SHORTEST, DAY.as_secs_f64());
                Arrival { at: Duration::from_secs_f64(begin + delay), life: Duration::from_secs_f64(life) }
            })
            .collect();
        group.sort_by_key(|arrival| arrival.at);
        groups.push(group);
    }
    groups.sort_by_key(|group| group.first().map(|arrival| arrival.at));
    let mut of_nodes = vec![VecDeque::new(); nodes];
    let mut ends: Vec<BinaryHeap<Reverse<Duration>>> = vec![BinaryHeap::new(); nodes];
    for group in groups {
        let Some(begin) = group.first().map(|arrival| arrival.at) else { continue };
        // As the scheduler, which puts no pod on a full node.
        let node = loop {
            let node = rng.usize(..nodes);
            while ends[node].peek().is_some_and(|end| end.0 <= begin) {
                ends[node].pop();
            }
            if ends[node].len() + group.len() <= MOST {
                break node;
            }
        };
        ends[node].extend(group.iter().map(|arrival| Reverse(arrival.at + arrival.life)));
        of_nodes[node].extend(group);
    }
    for arrivals in &mut of_nodes {
        arrivals.make_contiguous().sort_by_key(|arrival| arrival.at);
    }
    of_nodes
}

/// Draws a time; in the busy half of the day there are nine times as many as in the quiet one, at their
/// peaks.
fn time_of_day(rng: &mut Rng) -> f64 {
    loop {
        let part = rng.f64();
        if rng.f64() * 1.8 < 1.0 - 0.8 * (part * TAU).sin() {
            return part * DAY.as_secs_f64();
        }
    }
}
