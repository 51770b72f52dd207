//! What the documentation shows is accepted.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

use netclaim_api::LinkUse;
use netclaim_api::merge::{Author, Base, Layer, merge};
use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::opaque::Opaque;
use serde_json::Value;

mod pages;

use pages::{documents, pages, read, root};

fn opaque_parameters(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get("opaque").map(|opaque| opaque["parameters"].clone()));
            map.values().for_each(|value| opaque_parameters(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| opaque_parameters(item, found)),
        _ => {}
    }
}

#[test]
fn the_networks_of_the_documentation_are_valid() {
    let mut networks = 0;
    for page in pages() {
        for document in documents(&page).into_iter().filter(|document| document["kind"] == "ClaimNetwork") {
            let name = document["metadata"]["name"].as_str().expect("a name").to_owned();
            let spec: ClaimNetworkSpec = serde_json::from_value(document["spec"].clone()).expect("decodes");
            let found = (spec.problems(&name), spec.warnings(&name));
            assert_eq!(found, (vec![], vec![]), "{}: {name}", page.display());
            networks += 1;
        }
    }
    assert!(networks >= 14, "{networks}");
}

#[test]
fn the_configurations_of_the_documentation_are_read() {
    let mut found = Vec::new();
    for page in pages() {
        documents(&page).iter().for_each(|document| opaque_parameters(document, &mut found));
    }
    assert!(found.len() >= 14, "{}", found.len());
    for parameters in found {
        let config = Opaque::decode(&parameters.to_string()).unwrap_or_else(|e| panic!("{e}: {parameters}"));
        if matches!(config, Opaque::Cni(_)) {
            let layer = Layer { author: Author::Class, index: 0, config };
            merge(Base::Uplink(LinkUse::Nic), &[layer], None).unwrap_or_else(|e| panic!("{e}: {parameters}"));
        }
    }
}

#[test]
fn the_parameters_of_the_documentation_are_allowed() {
    let page = root().join("docs/tasks/parameters.md");
    let documents = documents(&page);
    let is_office = |document: &&Value| document["metadata"]["name"] == "office";
    let office = documents.iter().find(is_office).expect("the ClaimNetwork");
    let spec: ClaimNetworkSpec = serde_json::from_value(office["spec"].clone()).expect("decodes");
    let name = "office".parse().expect("a name");
    let mut found = Vec::new();
    documents.iter().for_each(|document| opaque_parameters(document, &mut found));
    let parameters = found.iter().find(|found| found["parameters"]["team"] == "web").expect("the claim");
    let attached = |parameters: &Value| {
        let config = Opaque::decode(&parameters.to_string()).expect("decodes");
        let layer = Layer { author: Author::Claim, index: 0, config };
        let merged = merge(Base::Network(&name, &spec), &[layer], None).map_err(|e| e.to_string())?;
        let scope = [("uplink.name".to_owned(), Value::from("eth1"))].into_iter().collect();
        let list = merged.resolve("netclaim-office", scope).map_err(|e| e.to_string())?;
        Ok::<Value, String>(serde_json::from_str(list.raw()).expect("JSON"))
    };
    let resolved = attached(parameters).expect("is allowed");
    let plugin = &resolved["plugins"][0];
    assert_eq!(plugin["dns"]["nameservers"], parameters["parameters"]["nameservers"]);
    assert_eq!((&plugin["dns"]["search"][0], &plugin["mtu"]), (&"web.office.example".into(), &1500.into()));

    let mut wrong = parameters.clone();
    wrong["parameters"]["nameservers"][1] = "10.40.0".into();
    let error = attached(&wrong).expect_err("is refused");
    let in_one_line = read(&page).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one_line.contains(&error), "{error}");
}
