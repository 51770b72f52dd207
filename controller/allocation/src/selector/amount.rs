//! Quantities in CEL (`k8s.io/apiserver/pkg/cel/library/quantity.go`).

use std::any::Any;
use std::cmp::Ordering;

use cel::common::types::{CelDouble, CelInt, INT_TYPE, STRING_TYPE, Type};
use cel::common::value::{CowVal, StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use netclaim_kubernetes::quantity::{Malformed, ONE, billionths};

use super::environment::{Returned, argument, text, truth, unknown};

static QUANTITY: Type = Type::new_unspecified_type("kubernetes.Quantity");

/// A quantity in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Amount(pub(super) i128);

impl Val for Amount {
    fn get_type(&self) -> &Type {
        &QUANTITY
    }

    fn cel_type() -> &'static Type {
        &QUANTITY
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Amount {}

pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    let quantity = || QUANTITY.to_owned();
    env.add_type(quantity())?;
    env.add_overload("quantity", "string_to_quantity", vec![STRING_TYPE], |arguments| {
        parsed(text(&arguments, 0)?)?
            .ok_or_else(|| ExecutionError::function_error("quantity", "the text is not a quantity"))
    })?;
    env.add_overload("isQuantity", "is_quantity_string", vec![STRING_TYPE], |arguments| {
        Ok(truth(parsed(text(&arguments, 0)?)?.is_some()))
    })?;
    env.add_member_overload(
        "isGreaterThan",
        "quantity_greater",
        quantity(),
        vec![quantity()],
        |arguments| Ok(truth(compared(&arguments)? == Ordering::Greater)),
    )?;
    env.add_member_overload("isLessThan", "quantity_less", quantity(), vec![quantity()], |arguments| {
        Ok(truth(compared(&arguments)? == Ordering::Less))
    })?;
    env.add_member_overload("compareTo", "quantity_compare", quantity(), vec![quantity()], |arguments| {
        Ok(whole(compared(&arguments)? as i64))
    })?;
    // Kubernetes documents a method and has a function.
    env.add_overload("sign", "quantity_sign", vec![quantity()], |arguments| {
        Ok(whole(amount(&arguments, 0)?.signum() as i64))
    })?;
    env.add_member_overload("isInteger", "quantity_is_integer", quantity(), vec![], |arguments| {
        Ok(truth(integer(amount(&arguments, 0)?).is_some()))
    })?;
    env.add_member_overload("asInteger", "quantity_integer", quantity(), vec![], |arguments| {
        let integer = integer(amount(&arguments, 0)?);
        integer
            .map(whole)
            .ok_or_else(|| ExecutionError::function_error("asInteger", "cannot convert value to integer"))
    })?;
    env.add_member_overload("asApproximateFloat", "quantity_float", quantity(), vec![], |arguments| {
        Ok(CowVal::owned(CelDouble::from(amount(&arguments, 0)? as f64 / ONE as f64)))
    })?;
    env.add_member_overload("add", "quantity_add", quantity(), vec![quantity()], |arguments| {
        sum(amount(&arguments, 0)?, Some(amount(&arguments, 1)?))
    })?;
    env.add_member_overload("add", "quantity_add_int", quantity(), vec![INT_TYPE], |arguments| {
        sum(amount(&arguments, 0)?, Some(ones(&arguments)?))
    })?;
    env.add_member_overload("sub", "quantity_sub", quantity(), vec![quantity()], |arguments| {
        sum(amount(&arguments, 0)?, amount(&arguments, 1)?.checked_neg())
    })?;
    env.add_member_overload("sub", "quantity_sub_int", quantity(), vec![INT_TYPE], |arguments| {
        sum(amount(&arguments, 0)?, ones(&arguments)?.checked_neg())
    })
}

fn parsed<'b, 'v>(text: &str) -> Result<Option<CowVal<'b, 'v>>, ExecutionError> {
    match billionths(text) {
        Ok(amount) => Ok(Some(CowVal::owned(Amount(amount)))),
        // Kubernetes reads larger ones, too.
        Err(Malformed::TooLarge) => Err(unknown("a quantity as large as this")),
        Err(Malformed::Suffix | Malformed::Digits) => Ok(None),
    }
}

fn amount(arguments: &[CowVal<'_, '_>], index: usize) -> Result<i128, ExecutionError> {
    let amount = argument(arguments, index)?.downcast_ref::<Amount>();
    amount.map(|amount| amount.0).ok_or_else(|| unknown("a quantity was expected"))
}

/// The second argument, an int, in billionths.
fn ones(arguments: &[CowVal<'_, '_>]) -> Result<i128, ExecutionError> {
    let int =
        argument(arguments, 1)?.downcast_ref::<CelInt>().ok_or_else(|| unknown("an int was expected"))?;
    Ok(i128::from(*int.inner()) * ONE)
}

fn compared(arguments: &[CowVal<'_, '_>]) -> Result<Ordering, ExecutionError> {
    Ok(amount(arguments, 0)?.cmp(&amount(arguments, 1)?))
}

fn sum<'b, 'v>(one: i128, other: Option<i128>) -> Returned<'b, 'v> {
    let sum = other.and_then(|other| one.checked_add(other));
    sum.map(|sum| CowVal::owned(Amount(sum))).ok_or_else(|| unknown("a quantity as large as this"))
}

fn integer(amount: i128) -> Option<i64> {
    if amount % ONE == 0 { i64::try_from(amount / ONE).ok() } else { None }
}

fn whole<'b, 'v>(value: i64) -> CowVal<'b, 'v> {
    CowVal::owned(CelInt::from(value))
}
