//! The metrics that every Prometheus client has of its own process, from `/proc`.

use std::fmt;
use std::fs::{read_dir, read_to_string};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// A metric, and how to read it; `None` if the kernel does not say it.
pub(crate) struct Own {
    /// Its name without unit and suffix.
    pub(crate) name: &'static str,
    pub(crate) kind: MetricType,
    pub(crate) unit: Option<&'static str>,
    pub(crate) help: &'static str,
    read: fn() -> Option<f64>,
}

const fn gauge(
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    read: fn() -> Option<f64>,
) -> Own {
    Own { name, kind: MetricType::Gauge, unit, help, read }
}

/// With the names of the other clients.
pub(crate) const ALL: [Own; 6] = [
    gauge("process_start_time", Some("seconds"), "When the process started, since 1970", start),
    Own {
        name: "process_cpu",
        kind: MetricType::Counter,
        unit: Some("seconds"),
        help: "Time of processors that the process has used",
        read: || Some((stat(14)? + stat(15)?) / TICKS),
    },
    gauge("process_resident_memory", Some("bytes"), "Memory that the process has in RAM", || {
        memory("VmRSS:")
    }),
    gauge("process_virtual_memory", Some("bytes"), "Addresses that the process has reserved", || {
        memory("VmSize:")
    }),
    // Without the one that reads them.
    gauge("process_open_fds", None, "Open file descriptors", || {
        Some(read_dir("/proc/self/fd").ok()?.count() as f64 - 1.0)
    }),
    gauge("process_max_fds", None, "File descriptors that the process may open", || {
        number(&read_to_string("/proc/self/limits").ok()?, "Max open files")
    }),
];

/// Parts of a second in which the kernel counts time for programs (`USER_HZ`), on all architectures of the
/// images.
const TICKS: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct OwnMetrics;

impl Collector for OwnMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Own { name, kind, unit, help, read } in ALL {
            let Some(value) = read() else { continue };
            let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
            let encoder = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            match kind {
                MetricType::Counter => ConstCounter::new(value).encode(encoder)?,
                _ => ConstGauge::new(value).encode(encoder)?,
            }
        }
        Ok(())
    }
}

fn start() -> Option<f64> {
    Some(number(&read_to_string("/proc/stat").ok()?, "btime")? + stat(22)? / TICKS)
}

/// A field of `/proc/self/stat`, by its number in proc(5).
fn stat(field: usize) -> Option<f64> {
    let text = read_to_string("/proc/self/stat").ok()?;
    // The second field is the program's name, which may have blanks and parentheses.
    text.rsplit_once(") ")?.1.split(' ').nth(field.checked_sub(3)?)?.parse().ok()
}

fn memory(name: &str) -> Option<f64> {
    Some(number(&read_to_string("/proc/self/status").ok()?, name)? * 1024.0)
}

/// The first number after a name at the beginning of a line.
fn number(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
