//! Reads what Prometheus reads: samples of OpenMetrics text. Lines that cannot be read are left out.

use std::collections::BTreeMap;

/// A value of a metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// Returns the samples of a text, in their order.
pub(super) fn samples(text: &str) -> impl Iterator<Item = Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // A timestamp or an exemplar may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// Reads labels up to their `}`; returns what follows it.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = text(quoted)?;
        labels.insert(name.to_owned(), value);
        rest = after;
    }
}

/// Reads a text up to its `"`; returns what follows it.
fn text(quoted: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), quoted.chars());
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Labels = Vec<(String, String)>;

    fn read(text: &str) -> Vec<(String, Labels, f64)> {
        let of = |sample: Sample| (sample.name, sample.labels.into_iter().collect(), sample.value);
        samples(text).map(of).collect()
    }

    #[test]
    fn samples_are_read_with_their_labels() {
        let text = "# HELP a What it is.\n# TYPE a gauge\na 1\nb{x=\"1\",y=\"a b\"} 2.5 1700000000\n# EOF\n";
        let labels = vec![("x".to_owned(), "1".to_owned()), ("y".to_owned(), "a b".to_owned())];
        assert_eq!(read(text), [("a".to_owned(), vec![], 1.0), ("b".to_owned(), labels, 2.5)]);
    }

    #[test]
    fn values_of_labels_may_have_every_sign() {
        let read = read(r#"a{path="/opt/a\"b\\c\nd},e= "} 1"#);
        assert_eq!(
            read,
            [("a".to_owned(), vec![("path".to_owned(), "/opt/a\"b\\c\nd},e= ".to_owned())], 1.0)]
        );
    }

    #[test]
    fn lines_that_are_no_samples_are_left_out() {
        for text in ["", "\n", "a", "a b", "a{", "a{x} 1", "a{x=\"1} 1", "a{x=\"1\" 1", "a{x=\"1\\", "é 1é"]
        {
            assert_eq!(read(text), [], "{text:?}");
        }
        assert_eq!(read("a{x=\nb 1\n").len(), 1);
        assert!(read("a NaN\na +Inf\n").iter().all(|(_, _, value)| !value.is_finite()));
    }
}
