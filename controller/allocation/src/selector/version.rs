//! Semantic versions in CEL (`k8s.io/apiserver/pkg/cel/library/semverlib.go`).

use std::any::Any;
use std::cmp::Ordering;

use cel::common::types::{BOOL_TYPE, CelBool, CelInt, STRING_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};

use super::environment::{Returned, argument, text, truth, unknown};

static SEMVER: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A version; the build does not count in comparisons.
#[derive(Debug, Clone)]
pub(super) struct Version(semver::Version);

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error| format!("{text:?} is not a semantic version: {error}"))
    }
}

impl Val for Version {
    fn get_type(&self) -> &Type {
        &SEMVER
    }

    fn cel_type() -> &'static Type {
        &SEMVER
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>().is_some_and(|other| self.0.cmp_precedence(&other.0) == Ordering::Equal)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Version {}

pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    let semver = || SEMVER.to_owned();
    env.add_type(semver())?;
    env.add_overload("semver", "string_to_semver", vec![STRING_TYPE], made)?;
    env.add_overload("semver", "string_bool_to_semver", vec![STRING_TYPE, BOOL_TYPE], made)?;
    env.add_overload("isSemver", "is_semver_string", vec![STRING_TYPE], is_version)?;
    env.add_overload("isSemver", "is_semver_string_bool", vec![STRING_TYPE, BOOL_TYPE], is_version)?;
    env.add_member_overload("isGreaterThan", "semver_greater", semver(), vec![semver()], |arguments| {
        Ok(truth(compared(&arguments)? == Ordering::Greater))
    })?;
    env.add_member_overload("isLessThan", "semver_less", semver(), vec![semver()], |arguments| {
        Ok(truth(compared(&arguments)? == Ordering::Less))
    })?;
    env.add_member_overload("compareTo", "semver_compare", semver(), vec![semver()], |arguments| {
        Ok(CowVal::owned(CelInt::from(compared(&arguments)? as i64)))
    })?;
    env.add_member_overload("major", "semver_major", semver(), vec![], |arguments| {
        number(version(&arguments, 0)?.0.major)
    })?;
    env.add_member_overload("minor", "semver_minor", semver(), vec![], |arguments| {
        number(version(&arguments, 0)?.0.minor)
    })?;
    env.add_member_overload("patch", "semver_patch", semver(), vec![], |arguments| {
        number(version(&arguments, 0)?.0.patch)
    })
}

fn made<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Returned<'b, 'v> {
    let version = Version::parse(&spelled(&arguments)?);
    version.map(CowVal::owned).map_err(|error| ExecutionError::function_error("semver", error))
}

fn is_version<'b, 'v>(arguments: Vec<CowVal<'b, 'v>>) -> Returned<'b, 'v> {
    Ok(truth(Version::parse(&spelled(&arguments)?).is_ok()))
}

/// The text of the first argument, normalized if the second one is true.
fn spelled(arguments: &[CowVal<'_, '_>]) -> Result<String, ExecutionError> {
    let text = text(arguments, 0)?;
    let normalize = arguments.get(1).and_then(|argument| argument.downcast_ref::<CelBool>());
    let normalize = normalize.is_some_and(|normalize| *normalize.inner());
    Ok(if normalize { normalized(text) } else { text.to_owned() })
}

/// Removes a `v` in front and leading zeros, and adds the minor and patch numbers that are missing.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(without_zeros).collect();
    if parts.len() < 3 {
        // A suffix such as `-rc.1` follows three numbers only.
        if parts.last().is_some_and(|last| last.contains(['-', '+'])) {
            return text.to_owned();
        }
        parts.resize(3, "0".to_owned());
    }
    parts.join(".")
}

fn without_zeros(part: &str) -> String {
    if part.len() < 2 {
        return part.to_owned();
    }
    let trimmed = part.trim_start_matches('0');
    let begins_with_digit = trimmed.starts_with(|c: char| c.is_ascii_digit());
    if begins_with_digit { trimmed.to_owned() } else { format!("0{trimmed}") }
}

fn version<'a>(arguments: &'a [CowVal<'_, '_>], index: usize) -> Result<&'a Version, ExecutionError> {
    argument(arguments, index)?.downcast_ref::<Version>().ok_or_else(|| unknown("a version was expected"))
}

fn compared(arguments: &[CowVal<'_, '_>]) -> Result<Ordering, ExecutionError> {
    Ok(version(arguments, 0)?.0.cmp_precedence(&version(arguments, 1)?.0))
}

fn number<'b, 'v>(value: u64) -> Returned<'b, 'v> {
    Ok(CowVal::owned(CelInt::from(i64::try_from(value).unwrap_or(i64::MAX))))
}
