//! The committed CRD and JSON schemas are what the types say. `make generate` writes them anew.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::path::Path;

use kube::CustomResourceExt as _;
use netclaim_api::addresses::{AddressBlock, AddressLease, AddressPool};
use netclaim_api::network::Network;
use netclaim_api::uplink_policy::UplinkPolicy;
use netclaim_api::{AttachmentConfig, CniConfig};

fn assert_fresh(path: &str, content: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path);
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(&file, content).expect("writable");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == content, "deploy/{path} is stale: run `make generate` and commit the result");
}

#[test]
fn the_crds_are_fresh() {
    for (source, crd) in [
        ("network/mod", Network::crd()),
        ("uplink_policy/mod", UplinkPolicy::crd()),
        ("addresses/pool", AddressPool::crd()),
        ("addresses/block", AddressBlock::crd()),
        ("addresses/lease", AddressLease::crd()),
    ] {
        let yaml = serde_saphyr::to_string(&crd).expect("YAML");
        assert_fresh(
            &format!("crds/netclaim.dev_{}.yaml", crd.spec.names.plural),
            &format!("# Generated from api/src/{source}.rs by `make generate`.\n{yaml}"),
        );
    }
}

#[test]
fn the_schemas_of_the_opaque_parameters_are_fresh() {
    let schemas = [
        ("schemas/attachmentconfig.json", "AttachmentConfig", schemars::schema_for!(AttachmentConfig)),
        ("schemas/cniconfig.json", "CNIConfig", schemars::schema_for!(CniConfig)),
    ];
    for (path, kind, mut schema) in schemas {
        // What the decoder takes off before it looks at the rest.
        let object = schema.ensure_object();
        let properties = object.get_mut("properties").and_then(|p| p.as_object_mut()).expect("an object");
        properties.insert("apiVersion".into(), serde_json::json!({"const": netclaim_api::API_VERSION}));
        properties.insert("kind".into(), serde_json::json!({"const": kind}));
        let text = serde_json::to_string_pretty(&schema).expect("JSON");
        assert_fresh(path, &format!("{text}\n"));
    }
}
