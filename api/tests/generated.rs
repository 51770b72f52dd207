//! The committed CRD and JSON schemas are what the types say. `make generate` writes them again.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use netclaim_api::addresses::{AddressBlock, AddressLease, AddressPool};
use netclaim_api::network::ClaimNetwork;
use netclaim_api::network_attachment::NetworkAttachment;
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_api::{AttachmentConfig, CniConfig};
use schemars::Schema;
use serde_json::{Value, json};

fn assert_fresh(path: &str, content: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path);
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(&file, content).expect("writable");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == content, "deploy/{path} is stale: run `make generate` and commit the result");
}

/// The CRDs, with the source of each.
fn crds() -> [(&'static str, CustomResourceDefinition); 6] {
    [
        ("network/mod", ClaimNetwork::crd()),
        ("uplink_policy/mod", UplinkPolicy::crd()),
        ("addresses/pool", AddressPool::crd()),
        ("addresses/block", AddressBlock::crd()),
        ("addresses/lease", AddressLease::crd()),
        ("network_attachment", NetworkAttachment::crd()),
    ]
}

/// Returns a CRD in which `null` is not a third state of a field (it is pruned), and each list says how it is
/// merged.
fn conventional(crd: &CustomResourceDefinition) -> CustomResourceDefinition {
    fn mend(schema: &mut Value) {
        match schema {
            Value::Object(object) => {
                object.remove("nullable");
                if object.get("type") == Some(&json!("array")) {
                    object.entry("x-kubernetes-list-type").or_insert_with(|| json!("atomic"));
                }
                object.values_mut().for_each(mend);
            }
            Value::Array(items) => items.iter_mut().for_each(mend),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(crd).expect("JSON");
    mend(&mut value["spec"]["versions"][0]["schema"]);
    serde_json::from_value(value).expect("a definition")
}

/// The schemas of the opaque parameters, with the file of each.
fn schemas() -> [(&'static str, Schema); 2] {
    let schemas = [
        ("schemas/attachmentconfig.json", "AttachmentConfig", schemars::schema_for!(AttachmentConfig)),
        ("schemas/cniconfig.json", "CNIConfig", schemars::schema_for!(CniConfig)),
    ];
    schemas.map(|(path, kind, mut schema)| {
        // What the decoder takes off before it looks at the rest.
        let object = schema.ensure_object();
        let properties = object.get_mut("properties").and_then(Value::as_object_mut).expect("an object");
        let constant = |value: &str, description: &str| json!({"const": value, "description": description});
        let version = constant(netclaim_api::API_VERSION, "Version of the format of these parameters.");
        properties.insert("apiVersion".into(), version);
        properties.insert("kind".into(), constant(kind, "What these parameters are."));
        (path, schema)
    })
}

#[test]
fn the_crds_are_fresh() {
    for (source, crd) in crds() {
        let yaml = serde_saphyr::to_string(&conventional(&crd)).expect("YAML");
        assert_fresh(
            &format!("crds/netclaim.dev_{}.yaml", crd.spec.names.plural),
            &format!("# Generated from api/src/{source}.rs by `make generate`.\n{yaml}"),
        );
    }
}

#[test]
fn the_schemas_of_the_opaque_parameters_are_fresh() {
    for (path, schema) in schemas() {
        let text = serde_json::to_string_pretty(&schema).expect("JSON");
        assert_fresh(path, &format!("{text}\n"));
    }
}

/// Collects the paths of the properties that have no description, and returns how many properties there are.
fn undescribed(schema: &Value, path: &str, found: &mut Vec<String>) -> usize {
    let Some(object) = schema.as_object() else {
        let items = schema.as_array().into_iter().flatten();
        return items.map(|item| undescribed(item, path, found)).sum();
    };
    let mut count = 0;
    for (key, value) in object {
        let Some(properties) = value.as_object().filter(|_| key == "properties") else {
            count += undescribed(value, path, found);
            continue;
        };
        for (name, property) in properties {
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(|text| text.trim().is_empty()) {
                found.push(path.clone());
            }
            count += 1 + undescribed(property, &path, found);
        }
    }
    count
}

#[test]
fn every_field_of_the_crds_and_schemas_has_a_description() {
    let of_crds = crds().map(|(source, crd)| (source, serde_json::to_value(crd).expect("JSON")));
    let of_schemas = schemas().map(|(path, schema)| (path, schema.to_value()));
    for (source, schema) in of_crds.into_iter().chain(of_schemas) {
        let mut missing = Vec::new();
        let count = undescribed(&schema, source, &mut missing);
        assert!(count > 5, "{source}: only {count} fields were found");
        assert!(missing.is_empty(), "`kubectl explain` says nothing of {missing:?}");
    }
}

/// Collects the paths of the amounts that no rule of their object looks at, and returns how many amounts
/// there are.
fn unchecked_amounts(schema: &Value, path: &str, found: &mut Vec<String>) -> usize {
    let properties = schema["properties"].as_object();
    let rules: Vec<&str> = schema["x-kubernetes-validations"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|rule| rule["rule"].as_str().is_some_and(|rule| rule.contains("isQuantity(")))
        .filter_map(|rule| rule["fieldPath"].as_str())
        .collect();
    let mut count = 0;
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        if property["x-kubernetes-int-or-string"] == true {
            count += 1;
            if !rules.contains(&format!(".{name}").as_str()) {
                found.push(path.clone());
            }
        }
        count += unchecked_amounts(property, &path, found);
    }
    count
}

#[test]
fn the_api_server_checks_every_amount() {
    let (mut unchecked, mut amounts) = (Vec::new(), 0);
    for (source, crd) in crds() {
        let crd = serde_json::to_value(crd).expect("JSON");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        amounts += unchecked_amounts(schema, source, &mut unchecked);
    }
    assert!(amounts >= 5 && unchecked.is_empty(), "of {amounts}: {unchecked:?}");
}
