//! What was found, for people and for programs.

use std::fmt;

use netclaim_api::Invalid;
use netclaim_validation::{Review, review_set};
use serde::Serialize;
use serde_json::Value;

use crate::files::File;
use crate::printable::printable;

/// The summary names this many objects that are not for netclaim.
const NAMED: usize = 8;

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    objects: Vec<Reviewed>,
    unreadable: Vec<Unreadable>,
}

/// An object with its problems.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reviewed {
    file: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    for_netclaim: bool,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct Problem {
    field: String,
    message: String,
}

/// A file that has no objects.
#[derive(Debug, Serialize)]
struct Unreadable {
    file: String,
    message: String,
}

impl Report {
    /// Reviews the objects of all files together.
    pub(super) fn of(files: Vec<File>, driver: &str) -> Self {
        let (mut unreadable, mut places, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for File { path, objects } in files {
            match objects {
                Ok(objects) => {
                    places.extend(std::iter::repeat_n(path, objects.len()));
                    all.extend(objects);
                }
                Err(message) => unreadable.push(Unreadable { file: path, message: printable(&message) }),
            }
        }
        let reviews = review_set(&all, driver);
        let objects = places.into_iter().zip(&all).zip(reviews);
        let objects = objects.map(|((file, object), review)| Reviewed::of(file, object, review)).collect();
        Self { objects, unreadable }
    }

    /// Whether nothing is wrong; with `strict`, no warning either.
    pub(super) fn is_fine(&self, strict: bool) -> bool {
        let is_fine = |object: &Reviewed| object.errors.is_empty() && (object.warnings.is_empty() || !strict);
        self.unreadable.is_empty() && self.objects.iter().all(is_fine)
    }

    /// Returns how many objects are fine, and which were not looked at.
    pub(super) fn summary(&self) -> String {
        let (ours, others): (Vec<&Reviewed>, Vec<&Reviewed>) =
            self.objects.iter().partition(|object| object.for_netclaim);
        let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let wrong = ours.iter().filter(|object| !object.errors.is_empty()).count();
        let warned =
            ours.iter().filter(|object| object.errors.is_empty() && !object.warnings.is_empty()).count();
        let mut parts: Vec<String> = [
            count(ours.len() - wrong - warned, "fine"),
            count(warned, "with warnings"),
            count(wrong, "with errors"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() {
            parts.push("no object is for netclaim".to_owned());
        }
        let mut summary = parts.join(", ");
        if !self.unreadable.is_empty() {
            summary += &format!("; {} files could not be read", self.unreadable.len());
        }
        if !others.is_empty() {
            let named: Vec<String> = others.iter().take(NAMED).map(|object| object.reference()).collect();
            let more = others.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            summary += &format!("; not for netclaim: {}{more}", named.join(", "));
        }
        summary
    }
}

impl Reviewed {
    fn of(file: String, object: &Value, review: Option<Review>) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let metadata = &object["metadata"];
        let problems = |problems: Vec<Invalid>| {
            problems
                .into_iter()
                .map(|Invalid { field, problem }| Problem { field, message: problem })
                .collect()
        };
        let for_netclaim = review.is_some();
        let Review { errors, warnings } = review.unwrap_or_default();
        Self {
            file,
            kind: text(&object["kind"]).unwrap_or_else(|| "(no kind)".to_owned()),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]).or_else(|| text(&metadata["generateName"])).unwrap_or_default(),
            for_netclaim,
            errors: problems(errors),
            warnings: problems(warnings),
        }
    }

    fn reference(&self) -> String {
        printable(&format!("{}/{}", self.kind, self.name))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, message } = self;
        if field.is_empty() { f.write_str(message) } else { write!(f, "{field}: {message}") }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Unreadable { file, message } in &self.unreadable {
            writeln!(f, "{}: {message}", printable(file))?;
        }
        for object in &self.objects {
            let place = format!("{}: {}", printable(&object.file), object.reference());
            for error in &object.errors {
                writeln!(f, "{place}: {error}")?;
            }
            for warning in &object.warnings {
                writeln!(f, "{place}: warning: {warning}")?;
            }
        }
        Ok(())
    }
}
