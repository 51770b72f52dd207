//! What an expression reads of a device.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use netclaim_api::attributes;

/// The parts of a device that an expression reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// Attributes and capacities that it names.
    pub values: Vec<Read>,
    /// Whether it reads anything but the driver's name.
    pub narrows: bool,
}

/// An attribute or capacity that an expression names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Whether it is a capacity, and not an attribute.
    pub is_capacity: bool,
    /// The domain, which is a driver's name or one of others.
    pub domain: String,
    /// The name in the domain.
    pub name: String,
    /// Whether the expression has a value for devices without it: by `.?`, `has()` or `in`.
    pub is_optional: bool,
}

impl Reads {
    pub(super) fn of(expression: &IdedExpr) -> Self {
        let mut reads = Self::default();
        reads.visit(expression);
        // `has(x.a) && x.a == 1` names it twice, once with a value for all devices.
        let optional: Vec<Read> = reads.values.iter().filter(|read| read.is_optional).cloned().collect();
        for read in &mut reads.values {
            let is_guard = |guard: &Read| guard == &Read { is_optional: true, ..read.clone() };
            read.is_optional = optional.iter().any(is_guard);
        }
        reads
    }

    fn visit(&mut self, expression: &IdedExpr) {
        match &expression.expr {
            Expr::Call(call) => self.call(&call.func_name, &call.args),
            Expr::Select(select) => {
                self.narrows |= is_device(&select.operand) && select.field != "driver";
                self.add(&select.operand, Some(&select.field), select.test);
            }
            _ => {}
        }
        parts(expression).into_iter().for_each(|part| self.visit(part));
    }

    fn call(&mut self, function: &str, arguments: &[IdedExpr]) {
        match (function, arguments) {
            (operators::INDEX, [values, name]) => self.add(values, text_of(name), false),
            (operators::OPT_INDEX | operators::OPT_SELECT, [values, name]) => {
                self.add(values, text_of(name), true);
            }
            (operators::IN, [name, values]) => self.add(values, text_of(name), true),
            _ => {}
        }
    }

    /// Notes the name if `values` is `device.attributes["DOMAIN"]` or `device.capacity["DOMAIN"]`.
    fn add(&mut self, values: &IdedExpr, name: Option<&str>, is_optional: bool) {
        let Expr::Call(call) = &values.expr else { return };
        let (operators::INDEX, [map, domain]) = (call.func_name.as_str(), call.args.as_slice()) else {
            return;
        };
        let Expr::Select(select) = &map.expr else { return };
        if !is_device(&select.operand) || !["attributes", "capacity"].contains(&select.field.as_str()) {
            return;
        }
        let (Some(domain), Some(name)) = (text_of(domain), name) else { return };
        self.values.push(Read {
            is_capacity: select.field == "capacity",
            domain: domain.to_owned(),
            name: name.to_owned(),
            is_optional,
        });
    }
}

/// How deep the expression is nested.
pub(super) fn depth(expression: &IdedExpr) -> usize {
    1 + parts(expression).into_iter().map(depth).max().unwrap_or_default()
}

/// The expressions in an expression.
fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Call(call) => call.target.iter().map(AsRef::as_ref).chain(&call.args).collect(),
        Expr::Select(select) => vec![select.operand.as_ref()],
        Expr::Comprehension(comprehension) => vec![
            &comprehension.iter_range,
            &comprehension.accu_init,
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| parts_of_entry(&entry.expr)).collect(),
        Expr::Struct(fields) => fields.entries.iter().flat_map(|entry| parts_of_entry(&entry.expr)).collect(),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
    }
}

fn parts_of_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

fn is_device(expression: &IdedExpr) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "device")
}

/// The text of a literal.
pub(super) fn text_of(expression: &IdedExpr) -> Option<&str> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner()),
        _ => None,
    }
}

/// Returns the ClaimNetwork that every selected device of the driver must have, as far as a conjunction says
/// it.
pub(super) fn required_network<'a>(expression: &'a IdedExpr, driver: &str) -> Option<&'a str> {
    let Expr::Call(call) = &expression.expr else { return None };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, sides) => sides.iter().find_map(|side| required_network(side, driver)),
        (operators::EQUALS, [one, other]) => {
            let equals =
                |attribute, value| is_network_of(attribute, driver).then(|| text_of(value)).flatten();
            equals(one, other).or_else(|| equals(other, one))
        }
        _ => None,
    }
}

/// Whether this is `device.attributes["DRIVER"].network`.
fn is_network_of(expression: &IdedExpr, driver: &str) -> bool {
    let operand = match &expression.expr {
        Expr::Select(select) if select.field == attributes::NETWORK && !select.test => &select.operand,
        Expr::Call(call) if call.func_name == operators::INDEX => match call.args.as_slice() {
            [operand, key] if text_of(key) == Some(attributes::NETWORK) => operand,
            _ => return false,
        },
        _ => return false,
    };
    let Expr::Call(call) = &operand.expr else { return false };
    call.func_name == operators::INDEX && call.args.get(1).and_then(text_of) == Some(driver)
}
