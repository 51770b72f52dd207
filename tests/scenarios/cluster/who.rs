//! `netclaimctl who`: which pod has an address, and which had it before.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Test, eventually};
use serde_json::{Value, json};

/// Waits until these pods are found, in this order, the first one attached or not.
fn is_found(test: &Test<'_>, subject: &str, pods: &[&str], is_attached: bool) -> Result<Value> {
    eventually(30, &format!("netclaimctl says who has and had {subject}"), || {
        let said = test.netclaimctl(&["who", subject, "--output=json"])?;
        let found: Vec<&Value> = list(&said["attachments"]).collect();
        let of_pods: Vec<String> = found.iter().map(|row| text(&row["pod"])).collect();
        ensure!(of_pods == pods, "they are {of_pods:?}: {said}");
        ensure!(found[0]["isAttached"] == is_attached, "{said}");
        ensure!(
            found.iter().skip(1).all(|row| row["isAttached"] == false && row["until"].is_string()),
            "{said}"
        );
        ensure!(found.iter().all(|row| row["node"] == "node0" && row["from"].is_string()), "{said}");
        ensure!(list(&said["notes"]).next().is_none(), "{said}");
        Ok(said)
    })
}

pub fn an_address_that_changes_hands_has_its_pods_one_after_another(test: &Test<'_>) -> Result<()> {
    let address = test.address(2, 10);
    let network = test.network("a", |network| {
        network["spec"]["cni"]["plugins"][0]["ipam"]["ranges"] = json!([[
            {"subnet": test.subnet(2), "rangeStart": address, "rangeEnd": address}]]);
    })?;
    let nobody = test.netclaimctl(&["who", &address, "--output=json"])?;
    ensure!(list(&nobody["attachments"]).next().is_none(), "{nobody}");
    test.start_pod("first", &network)?;
    is_found(test, &address, &["first"], true)?;
    test.delete_pod("first")?;
    is_found(test, &address, &["first"], false)?;
    test.start_pod("second", &network)?;
    let said = is_found(test, &address, &["second", "first"], true)?;
    ensure!(said["attachments"][0]["network"] == network, "{said}");
    let mac = said["attachments"][0]["mac"].as_str().context("it has a MAC address")?;
    is_found(test, mac, &["second"], true)?;
    test.delete_pod("second")?;
    is_found(test, &format!("{}/second", test.namespace()), &["second"], false)?;
    is_found(test, &address, &["second", "first"], false).map(drop)
}
