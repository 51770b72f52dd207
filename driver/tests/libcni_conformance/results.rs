//! Results in every version, converted to every other.

use netclaim_cni::{CniResult, SpecVersion};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::compare::settle_result;
use crate::random::{any_result, runner};
use crate::sides::{Side, result_json};

#[test]
#[ignore = "needs Go"]
fn results_are_converted_as_by_libcni() {
    let libcni = std::cell::RefCell::new(Side::libcni());
    let versions = || prop::sample::select(&SpecVersion::ALL);
    let results = versions().prop_flat_map(|version| {
        prop_oneof![9 => any_result(version).boxed(), 1 => Just(json!({"cniVersion": version})).boxed()]
    });
    let compare = |(result, to): (Value, SpecVersion)| {
        let order = json!({"Verb": "CONVERT", "List": result.to_string(), "Version": to});
        let answer = libcni.borrow_mut().ask(order);
        let mut theirs = answer["result"].clone();
        let ours = CniResult::parse(&result.to_string(), SpecVersion::CURRENT).unwrap().to_version(to);
        let mut ours = ours.ok().as_ref().map_or(Value::Null, result_json);
        settle_result(&mut ours);
        settle_result(&mut theirs);
        prop_assert_eq!(ours, theirs, "{} to {}: {}", result, to, answer["msg"]);
        Ok(())
    };
    runner(2000).run(&(results, versions()), compare).unwrap();
}
