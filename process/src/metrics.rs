//! A registry of metrics that describes what it has: the reference is generated from it, and tests compare it
//! with what is served.

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::registry::{Metric, Unit};

use crate::own::{self, Own, OwnMetrics};

/// Metrics, with a description of each.
#[derive(Debug)]
pub struct Registry {
    prefix: &'static str,
    metrics: prometheus_client::registry::Registry,
    /// Those of the process, whose names have no prefix.
    own: prometheus_client::registry::Registry,
    descriptions: Vec<Description>,
}

/// What a metric is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The name that Prometheus has it by. A histogram's name has no suffix here.
    pub name: String,
    /// Its OpenMetrics type, such as `counter`.
    pub kind: String,
    /// What its values are in; `None` for counts.
    pub unit: Option<&'static str>,
    /// What it says.
    pub help: &'static str,
    /// Its labels.
    pub labels: Vec<Label>,
}

/// A label of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What it can be.
    pub values: Values,
}

/// The possible values of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// One of these.
    OneOf(Vec<&'static str>),
    /// What the nodes or the cluster have, such as names of Networks.
    Any(&'static str),
}

impl Label {
    /// A label with one of these values.
    pub fn one_of(name: &'static str, values: &[&'static str]) -> Self {
        Self { name, values: Values::OneOf(values.to_vec()) }
    }

    /// A label whose values are described like this.
    pub const fn any(name: &'static str, values: &'static str) -> Self {
        Self { name, values: Values::Any(values) }
    }
}

impl Registry {
    /// A registry of metrics whose names begin with `prefix`.
    pub fn new(prefix: &'static str) -> Self {
        let metrics = prometheus_client::registry::Registry::with_prefix(prefix);
        let mut own = prometheus_client::registry::Registry::default();
        own.register_collector(Box::new(OwnMetrics));
        Self { prefix, metrics, own, descriptions: Vec::new() }
    }

    /// Registers a metric and returns it.
    pub fn add<M: Metric + TypedMetric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: impl Into<Vec<Label>>,
        metric: M,
    ) -> M {
        self.metrics.register(name, help, metric.clone());
        self.describe::<M>(name.to_owned(), None, help, labels.into());
        metric
    }

    /// Registers a metric of seconds and returns it. Its name ends with `_seconds`, which is not part of
    /// `name`.
    pub fn add_seconds<M: Metric + TypedMetric + Clone>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: impl Into<Vec<Label>>,
        metric: M,
    ) -> M {
        self.metrics.register_with_unit(name, help, Unit::Seconds, metric.clone());
        self.describe::<M>(format!("{name}_seconds"), Some("seconds"), help, labels.into());
        metric
    }

    fn describe<M: TypedMetric>(
        &mut self,
        name: String,
        unit: Option<&'static str>,
        help: &'static str,
        labels: Vec<Label>,
    ) {
        let kind = M::TYPE.as_str().to_owned();
        let suffix = if kind == "counter" { "_total" } else { "" };
        let name = format!("{}_{name}{suffix}", self.prefix);
        self.descriptions.push(Description { name, kind, unit, help, labels });
    }

    /// Returns what the metrics are, in the order of their registration, without those of [`of_process`].
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Returns all metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = encode_registry(&mut text, &self.metrics)
            .and_then(|()| encode_registry(&mut text, &self.own))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

/// Returns what the metrics are that every registry has of its process.
pub fn of_process() -> Vec<Description> {
    let described = |Own { name, kind, unit, help, .. }| {
        let kind = kind.as_str().to_owned();
        let unit_part = unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        let suffix = if kind == "counter" { "_total" } else { "" };
        Description { name: format!("{name}{unit_part}{suffix}"), kind, unit, help, labels: Vec::new() }
    };
    own::ALL.into_iter().map(described).collect()
}

/// Defines an enum whose variants are the values of a label, with lists of both.
#[macro_export]
macro_rules! label_values {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$of])* $variant,)+ }

        impl $name {
            /// All of them.
            $vis const ALL: &[Self] = &[$(Self::$variant),+];
            /// Their texts, in the same order.
            $vis const VALUES: &[&'static str] = &[$($value),+];
        }

        impl ::prometheus_client::encoding::EncodeLabelValue for $name {
            fn encode(
                &self,
                encoder: &mut ::prometheus_client::encoding::LabelValueEncoder<'_>,
            ) -> ::std::fmt::Result {
                ::std::fmt::Write::write_str(encoder, match self { $(Self::$variant => $value),+ })
            }
        }
    };
}

/// Checks of a whole registry, for the tests of programs.
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::expect_used, reason = "tests")]
pub mod testing {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Registry, Values};

    /// The values that each label of a metric has.
    type Seen = BTreeMap<String, BTreeSet<String>>;

    /// Calls what moves each metric, by its name. Panics unless every metric of the registry is in the table
    /// and moves, with exactly the labels and values of its description.
    pub fn assert_all_move(registry: &Registry, moves: &[(&str, &dyn Fn())]) {
        let described: BTreeSet<&str> = registry.descriptions().iter().map(|d| d.name.as_str()).collect();
        let moved: BTreeSet<&str> = moves.iter().map(|(name, _)| *name).collect();
        assert_eq!(described, moved, "every metric is in the table of what moves it, and nothing else");
        for (name, change) in moves {
            let description = registry.descriptions().iter().find(|d| d.name == *name).expect("described");
            let before = samples(&registry.render(), name);
            change();
            let after = samples(&registry.render(), name);
            assert_ne!(before, after, "{name} does not move");
            let seen = labels(&after);
            let names: Vec<&str> = seen.keys().map(String::as_str).collect();
            let wanted: BTreeSet<&str> = description.labels.iter().map(|label| label.name).collect();
            assert_eq!(names, Vec::from_iter(wanted), "the labels of {name}");
            for label in &description.labels {
                let Values::OneOf(values) = &label.values else { continue };
                let wanted: BTreeSet<String> = values.iter().map(ToString::to_string).collect();
                assert_eq!(seen.get(label.name), Some(&wanted), "the values of {} of {name}", label.name);
            }
        }
    }

    fn samples(text: &str, name: &str) -> Vec<String> {
        let suffixes = ["", "_bucket", "_sum", "_count"];
        let is_of = |line: &&str| {
            let series = line.split(['{', ' ']).next().unwrap_or_default();
            suffixes.iter().any(|suffix| series.strip_suffix(suffix) == Some(name))
        };
        text.lines().filter(is_of).map(str::to_owned).collect()
    }

    fn labels(samples: &[String]) -> Seen {
        let mut seen = Seen::new();
        let sets = samples.iter().filter_map(|line| Some(line.split_once('{')?.1.split_once('}')?.0));
        for (name, value) in sets.flat_map(|set| set.split(',')).filter_map(|label| label.split_once('=')) {
            // A histogram's own.
            if name != "le" {
                seen.entry(name.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::EncodeLabelSet;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    label_values! {
        enum Colour {
            Red = "red",
            Blue = "blue",
        }
    }

    #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct Paint {
        colour: Colour,
    }

    fn registry() -> (Registry, Family<Paint, Counter>, Gauge) {
        let mut registry = Registry::new("p");
        let labels = [Label::one_of("colour", Colour::VALUES)];
        let painted = registry.add("painted", "Things that were painted", labels, Family::default());
        let age = registry.add_seconds("age", "Age of the paint", [], Gauge::default());
        (registry, painted, age)
    }

    #[test]
    fn a_metric_is_served_by_the_name_of_its_description() {
        let (registry, painted, age) = registry();
        painted.get_or_create(&Paint { colour: Colour::Red }).inc();
        age.set(7);
        let text = registry.render();
        assert!(text.contains("\np_painted_total{colour=\"red\"} 1\n"), "{text}");
        assert!(text.contains("\np_age_seconds 7\n"), "{text}");
        let names: Vec<&str> = registry.descriptions().iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["p_painted_total", "p_age_seconds"]);
    }

    #[test]
    fn every_program_has_the_standard_metrics_of_a_process() {
        let (registry, ..) = registry();
        let value = |name: &str| -> f64 {
            let text = registry.render();
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "{age}");
        let (resident, virtual_) =
            (value("process_resident_memory_bytes"), value("process_virtual_memory_bytes"));
        assert!(resident > 100_000.0 && virtual_ >= resident, "{resident} of {virtual_}");
        let open = value("process_open_fds");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(open >= 3.0 && value("process_open_fds") > open && value("process_max_fds") > open);
        drop(file);
        let before = value("process_cpu_seconds_total");
        while value("process_cpu_seconds_total") == before {}
        assert!(registry.render().ends_with("# EOF\n") && registry.render().matches("# EOF").count() == 1);
    }

    #[test]
    fn a_registry_is_checked_with_every_value_of_every_label() {
        let (registry, painted, age) = registry();
        let paint =
            || Colour::ALL.iter().for_each(|c| _ = painted.get_or_create(&Paint { colour: *c }).inc());
        let grow = || _ = age.inc();
        testing::assert_all_move(&registry, &[("p_painted_total", &paint), ("p_age_seconds", &grow)]);
    }

    #[test]
    #[should_panic(expected = "the values of colour of p_painted_total")]
    fn a_value_that_never_comes_fails_the_check() {
        let (registry, painted, age) = registry();
        let paint = || _ = painted.get_or_create(&Paint { colour: Colour::Red }).inc();
        let grow = || _ = age.inc();
        testing::assert_all_move(&registry, &[("p_painted_total", &paint), ("p_age_seconds", &grow)]);
    }
}
