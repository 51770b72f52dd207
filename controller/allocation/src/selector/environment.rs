//! The functions of the scheduler's CEL environment that CEL itself does not have.

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::common::types::{CelBool, CelString, DYN_TYPE, Kind, STRING_TYPE};
use cel::common::value::{CowVal, Val};
use cel::parser::{Macro, MacroExprHelper, ParseError};
use cel::{DeclarationError, Env, ExecutionError, extensions};
use regex::bytes::RegexBuilder;

type Arguments<'b, 'v> = Vec<CowVal<'b, 'v>>;
pub(super) type Returned<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

/// Functions of the Kubernetes libraries that are not built here: of URLs, regular expressions, lists, IP
/// addresses, CIDRs, formats and sets, and those of `duration` and `timestamp`.
const MISSING: [&str; 41] = [
    "url",
    "isURL",
    "getScheme",
    "getHost",
    "getHostname",
    "getPort",
    "getEscapedPath",
    "getQuery",
    "find",
    "findAll",
    "isSorted",
    "sum",
    "min",
    "max",
    "ip",
    "isIP",
    "ip.isCanonical",
    "isCanonical",
    "family",
    "isUnspecified",
    "isLoopback",
    "isLinkLocalMulticast",
    "isLinkLocalUnicast",
    "isGlobalUnicast",
    "cidr",
    "isCIDR",
    "containsIP",
    "containsCIDR",
    "prefixLength",
    "masked",
    "validate",
    "sets.contains",
    "sets.intersects",
    "sets.equivalent",
    "duration",
    "timestamp",
    "transformList",
    "transformMap",
    "transformMapEntry",
    "authorizer",
    "first",
];

/// Whether the scheduler has a function of this name and this environment may not.
pub(super) fn is_missing(function: &str) -> bool {
    MISSING.contains(&function)
}

/// Returns the environment without quantities and versions.
pub(super) fn build() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_macro(Macro::receiver("bind", 3, bind))?;
    env.add_member_overload("matches", "string_matches", STRING_TYPE, vec![STRING_TYPE], matches)?;
    env.add_overload("matches", "matches_string", vec![STRING_TYPE, STRING_TYPE], matches)?;
    env.add_member_overload("includes", "dyn_includes", DYN_TYPE, vec![DYN_TYPE], includes)?;
    Ok(env)
}

/// Expands `cel.bind(NAME, VALUE, BODY)` as cel-go does: a loop of no rounds whose result is BODY with NAME
/// bound.
fn bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    arguments: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    let is_cel = |target: &IdedExpr| matches!(&target.expr, Expr::Ident(name) if name == "cel");
    if !target.as_ref().is_some_and(is_cel) {
        return Ok(None);
    }
    let (Some(result), Some(value), Some(name)) = (arguments.pop(), arguments.pop(), arguments.pop()) else {
        return Err(helper.new_error(0, "cel.bind() takes a name, a value and an expression"));
    };
    let Expr::Ident(name) = name.expr else {
        return Err(helper.new_error(name.id, "cel.bind() variable names must be simple identifiers"));
    };
    let bound = ComprehensionExpr {
        iter_range: helper.next_expr(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name.clone(),
        accu_init: value,
        loop_cond: helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: helper.next_expr(Expr::Ident(name)),
        result,
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(bound)))))
}

/// `TEXT.matches(PATTERN)`. RE2 and this crate agree on ASCII; for other texts nothing is claimed.
fn matches<'b, 'v>(arguments: Arguments<'b, 'v>) -> Returned<'b, 'v> {
    let (text, pattern) = (text(&arguments, 0)?, text(&arguments, 1)?);
    if !text.is_ascii() || !pattern.is_ascii() {
        return Err(unknown("matches() of a text that is not ASCII"));
    }
    // Without Unicode, `\d` and `\w` are ASCII, as in RE2.
    let regex = RegexBuilder::new(pattern).unicode(false).size_limit(SIZE_LIMIT).build();
    let regex = regex.map_err(|_| unknown("matches() of this pattern"))?;
    Ok(truth(regex.is_match(text.as_bytes())))
}

/// The most memory of a pattern, in bytes.
const SIZE_LIMIT: usize = 1 << 20;

/// `LIST.includes(ELEMENT)`; a value that is not a list includes itself.
fn includes<'b, 'v>(arguments: Arguments<'b, 'v>) -> Returned<'b, 'v> {
    let (whole, part) = (argument(&arguments, 0)?, argument(&arguments, 1)?);
    let is_list = whole.get_type().kind() == Kind::List;
    match whole.as_container().filter(|_| is_list) {
        Some(list) => Ok(truth(list.contains(part)?)),
        None => Ok(truth(whole.equals(part))),
    }
}

pub(super) fn truth<'b, 'v>(value: bool) -> CowVal<'b, 'v> {
    CowVal::owned(CelBool::from(value))
}

pub(super) fn argument<'a, 'b, 'v>(
    arguments: &'a [CowVal<'b, 'v>],
    index: usize,
) -> Result<&'a (dyn Val + 'v), ExecutionError> {
    arguments.get(index).map(AsRef::as_ref).ok_or_else(ExecutionError::missing_argument_or_target)
}

pub(super) fn text<'a>(arguments: &'a [CowVal<'_, '_>], index: usize) -> Result<&'a str, ExecutionError> {
    let text = argument(arguments, index)?.downcast_ref::<CelString>();
    text.map(CelString::inner).ok_or_else(|| unknown("a text was expected"))
}

/// An error that says nothing about what the scheduler gets.
pub(super) fn unknown(what: &str) -> ExecutionError {
    ExecutionError::InternalError(format!("{what} cannot be evaluated here"))
}
