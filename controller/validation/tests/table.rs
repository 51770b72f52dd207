//! The table of bad inputs, each with exactly what is said of it; and good inputs, of which nothing is said.
//!
//! `inputs/good.yaml` has good objects by name. Each case of `inputs/bad` changes one of them at a place
//! (`at`, a JSON pointer): `set` merges a value into it (RFC 7386), `put` replaces it, and without both it is
//! removed. `NETCLAIM_GENERATE=1` writes what is said into the cases: read the difference before you commit
//! it.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use netclaim_api::{DRIVER_NAME, Invalid};
use netclaim_validation::{Review, review, review_set};
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "../../../api/tests/pages/mod.rs"]
mod pages;

use pages::{pages, read, root};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    title: String,
    object: String,
    at: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    title: String,
    object: Option<String>,
    at: Option<String>,
    set: Option<Value>,
    put: Option<Value>,
    #[serde(default)]
    errors: Vec<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

fn inputs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs").join(path)
}

fn good() -> BTreeMap<String, Value> {
    serde_saphyr::from_str(&read(&inputs("good.yaml"))).expect("YAML")
}

fn tables() -> Vec<(PathBuf, Table)> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(inputs("bad")).expect("readable").map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    let table = |path: PathBuf| {
        let table = serde_saphyr::from_str(&read(&path))
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, table)
    };
    paths.into_iter().map(table).collect()
}

impl Table {
    /// The bad object of a case.
    fn object(&self, case: &Case, good: &BTreeMap<String, Value>) -> Value {
        let mut object = good[case.object.as_ref().unwrap_or(&self.object)].clone();
        let at = case.at.as_ref().unwrap_or(&self.at);
        match (&case.set, &case.put) {
            (None, None) => {
                let (parent, key) = at.rsplit_once('/').expect("a place");
                object.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object").remove(key);
            }
            (set, put) => {
                let place = object.pointer_mut(at).unwrap_or_else(|| panic!("{}: no {at}", case.title));
                put.iter().for_each(|value| *place = expanded(value));
                set.iter().for_each(|value| merge(place, expanded(value)));
            }
        }
        object
    }
}

/// Merges a JSON merge patch.
fn merge(value: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else { return *value = patch };
    if !value.is_object() {
        *value = json!({});
    }
    let fields = value.as_object_mut().expect("an object");
    for (key, patch) in patch {
        if patch.is_null() {
            fields.remove(&key);
        } else {
            merge(fields.entry(key).or_insert(Value::Null), patch);
        }
    }
}

/// Expands `{$repeat: [TEXT, COUNT, …]}`, `{$items: [ITEM, COUNT]}` and `{$nest: DEPTH}`.
fn expanded(value: &Value) -> Value {
    let count = |value: &Value| usize::try_from(value.as_u64().unwrap_or(1)).expect("a count");
    if let Some(parts) = value["$repeat"].as_array() {
        let text = |(index, part): (usize, &Value)| {
            Some(part.as_str()?.repeat(parts.get(index + 1).map_or(1, count)))
        };
        return Value::String(parts.iter().enumerate().filter_map(text).collect());
    }
    if let Some([item, number]) = value["$items"].as_array().map(Vec::as_slice) {
        return Value::Array(vec![item.clone(); count(number)]);
    }
    if value["$nest"].is_u64() {
        return (0..count(&value["$nest"])).fold(json!([]), |inner, _| json!([inner]));
    }
    match value {
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), expanded(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(expanded).collect()),
        other => other.clone(),
    }
}

fn texts(invalid: &[Invalid]) -> Vec<String> {
    invalid.iter().map(ToString::to_string).collect()
}

/// Writes what is said of each case behind it.
fn with_answers(text: &str, answers: &BTreeMap<String, Review>) -> String {
    let mut lines: Vec<String> = Vec::new();
    let (mut answer, mut skip) = (None, false);
    let finish = |lines: &mut Vec<String>, answer: &mut Option<&Review>| {
        let Some(review) = answer.take() else { return };
        for (key, invalid) in [("errors", &review.errors), ("warnings", &review.warnings)] {
            if !invalid.is_empty() {
                lines.push(format!("  {key}:"));
                lines.extend(texts(invalid).iter().map(|text| format!("  - {}", json!(text))));
            }
        }
    };
    for line in text.lines() {
        let title = line.strip_prefix("- title: ");
        if title.is_some() || !line.starts_with(' ') {
            finish(&mut lines, &mut answer);
            skip = false;
        }
        if let Some(title) = title {
            answer = answers.get(title);
        }
        skip |= ["  errors:", "  warnings:"].contains(&line);
        if !skip {
            lines.push(line.to_owned());
        }
    }
    finish(&mut lines, &mut answer);
    lines.join("\n") + "\n"
}

#[test]
fn each_bad_input_gives_exactly_its_errors_and_warnings() {
    let good = good();
    let mut wrong = Vec::new();
    for (path, table) in tables() {
        let mut answers = BTreeMap::new();
        for case in &table.cases {
            let found = review(&table.object(case, &good), DRIVER_NAME).expect("for netclaim");
            if (texts(&found.errors), texts(&found.warnings)) != (case.errors.clone(), case.warnings.clone())
            {
                wrong.push(format!("{}: {}:\n{found:#?}", table.title, case.title));
            }
            assert!(answers.insert(case.title.clone(), found).is_none(), "{} occurs twice", case.title);
        }
        if std::env::var_os("NETCLAIM_GENERATE").is_some() {
            fs::write(&path, with_answers(&read(&path), &answers)).expect("writable");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_bad_input_is_refused_or_gets_a_warning() {
    let cases: Vec<Case> = tables().into_iter().flat_map(|(_, table)| table.cases).collect();
    assert!(cases.len() >= 100, "{} cases", cases.len());
    for case in cases {
        assert!(!case.errors.is_empty() || !case.warnings.is_empty(), "{}: nothing is said", case.title);
    }
}

#[test]
fn messages_are_short_and_on_one_line() {
    for (_, table) in tables() {
        for text in table.cases.iter().flat_map(|case| case.errors.iter().chain(&case.warnings)) {
            assert!(text.len() < 1400 && !text.contains(char::is_control), "{text}");
        }
    }
}

/// The paths of a schema's fields, such as `allow.parameters.*.items.enum`.
fn fields(schema: &Value, root: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        fields(field, root, &format!("{path}."), found);
        found.insert(path);
    }
    if schema["additionalProperties"].is_object() {
        fields(&schema["additionalProperties"], root, &format!("{prefix}*."), found);
    }
    if schema["items"].is_object() {
        fields(&schema["items"], root, prefix, found);
    }
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        fields(&root["$defs"][name], root, prefix, found);
    }
    for choice in ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        fields(choice, root, prefix, found);
    }
}

/// Whether a path with indices is one of the field, or of something in it.
fn is_about(path: &str, field: &str) -> bool {
    let plain: String = path
        .split('[')
        .enumerate()
        .map(|(i, part)| if i == 0 { part } else { part.split_once(']').map_or("", |(_, rest)| rest) })
        .collect();
    let mut path = plain.split('.');
    field.split('.').all(|wanted| path.next().is_some_and(|found| wanted == "*" || wanted == found))
}

#[test]
fn every_field_has_a_bad_input() {
    let tables = tables();
    let said: Vec<&str> = tables
        .iter()
        .flat_map(|(_, table)| &table.cases)
        .flat_map(|case| case.errors.iter().chain(&case.warnings))
        .filter_map(|text| Some(text.split_once(": ")?.0))
        .collect();
    let json = |path: &str| serde_json::from_str::<Value>(&read(&root().join(path))).expect("JSON");
    let crd = |plural: &str| {
        let crd: Value =
            serde_saphyr::from_str(&read(&root().join(format!("deploy/crds/netclaim.dev_{plural}.yaml"))))
                .expect("YAML");
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
    };
    let parameters = "spec.devices.config[0].opaque.parameters";
    for (schema, prefix, of) in [
        (json("deploy/schemas/attachmentconfig.json"), parameters, "AttachmentConfig"),
        (crd("claimnetworks"), "spec", "ClaimNetwork"),
        (crd("uplinkpolicies"), "spec", "UplinkPolicy"),
        (crd("addresspools"), "spec", "AddressPool"),
    ] {
        let mut all = BTreeSet::new();
        fields(&schema, &schema, "", &mut all);
        assert!(all.len() > 5, "{all:?}");
        let said: Vec<&str> =
            said.iter().filter_map(|path| path.strip_prefix(prefix)?.strip_prefix('.')).collect();
        let missing: Vec<_> =
            all.iter().filter(|field| !said.iter().any(|path| is_about(path, field))).collect();
        assert!(missing.is_empty(), "no bad input is about {missing:?} of {of}");
    }
}

#[test]
fn nothing_is_said_of_good_objects() {
    for (name, object) in good() {
        assert_eq!(review(&object, DRIVER_NAME), Some(Review::default()), "{name}");
    }
}

#[test]
fn a_claim_for_a_reserved_address_takes_none_of_a_node() {
    let set = |requests: Value, ips: Value| {
        let parameters =
            json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "ips": ips});
        let network = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": "plc"}, "spec": {
            "uplink": {"links": ["eth1"]}, "allow": {"ips": {}},
            "addresses": {"ranges": [{"subnet": "10.30.0.0/28"}], "reserved": ["10.30.0.0/28"]},
            "cni": {"cniVersion": "1.1.0", "plugins": [{"type": "macvlan", "master": "${uplink.name}"}]}}});
        // The controller makes its class.
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "db"},
            "spec": {"devices": {
                "requests": [{"name": "net", "exactly": {"deviceClassName": "plc", "capacity": {"requests": requests}}}],
                "config": [{"opaque": {"driver": "netclaim.dev", "parameters": parameters}}]}}});
        let review = review_set(&[network, claim], DRIVER_NAME).pop().flatten().expect("for netclaim");
        (texts(&review.errors), texts(&review.warnings))
    };
    let none: Vec<String> = Vec::new();
    let field = "spec.devices.requests[0].exactly.capacity.requests[addresses]: is";
    assert_eq!(set(json!({"addresses": "0"}), json!(["10.30.0.5"])), (none.clone(), none.clone()));
    let (errors, warnings) = set(json!({}), json!(["10.30.0.5"]));
    assert!(errors.is_empty() && warnings.len() == 1, "{errors:?} {warnings:?}");
    assert!(warnings[0].starts_with(&format!("{field} not \"0\", so that the pod waits")), "{warnings:?}");
    let (errors, warnings) = set(json!({"addresses": 0}), json!([]));
    assert!(errors.len() == 1 && warnings.is_empty(), "{errors:?} {warnings:?}");
    assert!(errors[0].starts_with(&format!("{field} 0, but the claim asks for none")), "{errors:?}");
}

/// Every YAML document of a text.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Every YAML document in the fenced blocks of a page that is a whole object.
fn objects_of_page(page: &Path) -> Vec<Value> {
    pages::documents(page).into_iter().filter(|document| document["kind"].is_string()).collect()
}

#[test]
fn nothing_is_wrong_with_the_examples_and_the_documentation() {
    let folder = root().join("deploy/examples");
    let files = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let mut sources: Vec<(String, Vec<Value>)> =
        files.map(|path| (path.display().to_string(), documents(&read(&path)))).collect();
    sources.extend(pages().iter().map(|page| (page.display().to_string(), objects_of_page(page))));
    let mut warnings = Vec::new();
    let mut reviewed = 0;
    for (source, objects) in sources {
        for (object, review) in objects.iter().zip(review_set(&objects, DRIVER_NAME)) {
            let Some(review) = review else { continue };
            reviewed += 1;
            assert_eq!(review.errors, [], "{source}: {}", object["metadata"]["name"]);
            warnings.extend(
                texts(&review.warnings)
                    .into_iter()
                    .map(|text| format!("{}: {text}", object["metadata"]["name"])),
            );
        }
    }
    assert!(reviewed >= 40, "{reviewed}");
    // The page says so beside the example.
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(
        warnings[0]
            .starts_with("\"office\": spec.cni.plugins[0].ipam: host-local counts on each node for itself"),
        "{warnings:?}"
    );
}

/// The names that a list of objects has at `key`.
fn names<'a>(items: &'a Value, key: &'a str) -> impl Iterator<Item = &'a str> {
    items.as_array().into_iter().flatten().filter_map(move |item| item[key].as_str())
}

/// The class of each request of a claim.
fn classes(spec: &Value) -> Vec<&str> {
    let requests = spec["devices"]["requests"].as_array().into_iter().flatten();
    requests.filter_map(|request| request["exactly"]["deviceClassName"].as_str()).collect()
}

#[test]
fn the_pods_of_the_documentation_have_their_claims_and_classes_on_the_same_page() {
    let mut pods = 0;
    for page in pages() {
        let is_for_tenants = page.ends_with("docs/tenants.md");
        let (objects, page) = (objects_of_page(&page), page.display());
        let find = |kind: &str, name: &str| {
            let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects.iter().find(is_it).unwrap_or_else(|| panic!("{page}: no {kind} {name}"))
        };
        // A ClaimNetwork has a class of its name.
        let find_class = |name: &str| {
            let makes =
                |object: &Value| object["kind"] == "ClaimNetwork" && object["metadata"]["name"] == name;
            if !objects.iter().any(makes) {
                find("DeviceClass", name);
            }
        };
        for object in &objects {
            let pod =
                if object["kind"] == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
            let claims = &pod["resourceClaims"];
            let mut wanted = Vec::new();
            for name in names(claims, "resourceClaimTemplateName") {
                wanted.extend(classes(&find("ResourceClaimTemplate", name)["spec"]["spec"]));
            }
            for name in names(claims, "resourceClaimName") {
                wanted.extend(classes(&find("ResourceClaim", name)["spec"]));
            }
            // Tenants get the name of a class from their admin.
            let containers = pod["containers"].as_array().into_iter().flatten();
            let limits = containers.filter_map(|container| container["resources"]["limits"].as_object());
            let of_limits: Vec<&str> = limits
                .flat_map(|limits| limits.keys())
                .filter_map(|resource| resource.strip_prefix("deviceclass.resource.kubernetes.io/"))
                .collect();
            pods += usize::from(!of_limits.is_empty());
            wanted.extend(of_limits);
            if !is_for_tenants {
                wanted.into_iter().for_each(find_class);
            }
            let known: BTreeSet<&str> = names(claims, "name").collect();
            let containers = pod["containers"].as_array().into_iter().flatten();
            let used: BTreeSet<&str> =
                containers.flat_map(|container| names(&container["resources"]["claims"], "name")).collect();
            assert_eq!(known, used, "{page}: {}", object["metadata"]["name"]);
            pods += usize::from(!known.is_empty());
        }
    }
    assert!(pods >= 10, "{pods}");
}

#[test]
fn objects_of_others_are_not_for_netclaim() {
    let claim = |config: Value, class: &str| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": class, "count": 2}}], "config": config}}})
    };
    let opaque = json!([{"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "GpuConfig"}}}]);
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"gpu.example.com\""}}]}});
    let other_kind =
        json!({"apiVersion": "networks.example.com/v1", "kind": "ClaimNetwork", "metadata": {"name": "A"}});
    let written_by_netclaim =
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressBlock", "spec": 7});
    for object in [
        claim(opaque, "gpu"),
        claim(Value::Null, "gpu"),
        class,
        other_kind,
        written_by_netclaim,
        json!({}),
        json!(7),
    ] {
        assert_eq!(review(&object, DRIVER_NAME), None, "{object}");
    }
}

#[test]
fn another_name_of_the_driver_is_looked_for() {
    let claim = &good()["claim"];
    assert_eq!(review(claim, DRIVER_NAME), Some(Review::default()));
    let mut claim = claim.clone();
    *claim.pointer_mut("/spec/devices/config/0/opaque/driver").expect("the driver") =
        json!("net.example.com");
    assert_eq!(review(&claim, "net.example.com"), Some(Review::default()));
}

#[test]
fn objects_of_a_set_know_each_other() {
    let good = good();
    let mut claim = good["claim"].clone();
    let parameters = claim.pointer_mut("/spec/devices/config/0/opaque/parameters").expect("parameters");
    merge(parameters, json!({"ips": ["10.30.0.7"], "args": {"TENANT": "a"}, "parameters": {"mode": "vepa"}}));
    let said = |objects: &[Value]| {
        let reviews = review_set(objects, DRIVER_NAME);
        texts(&reviews.last().expect("a review").as_ref().expect("for netclaim").errors)
    };
    assert_eq!(said(&[claim.clone()]), [""; 0]);
    let class = good["class"].clone();
    assert_eq!(said(&[class.clone(), claim.clone()]), [""; 0], "the ClaimNetwork may be in the cluster");
    let (network, place) = (good["network"].clone(), "spec.devices.config[0].opaque.parameters");
    let refusal = said(&[network.clone(), class.clone(), claim.clone()]);
    assert_eq!(
        refusal,
        [format!(
            "{place}.args.TENANT: ClaimNetwork \"lab\" does not allow claims to pass it: remove it, or have the admin add it to \
             allow.args.names"
        )]
    );
    let parameters = "/spec/devices/config/0/opaque/parameters";
    merge(claim.pointer_mut(parameters).expect("parameters"), json!({"args": null}));
    let refusal = said(&[network.clone(), class.clone(), claim.clone()]);
    assert!(
        refusal.len() == 1 && refusal[0].starts_with(&format!("{place}.parameters.mode: \"vepa\" is not")),
        "{refusal:?}"
    );
    merge(claim.pointer_mut(parameters).expect("parameters"), json!({"parameters": {"mode": "bridge"}}));
    let refusal = said(&[network.clone(), class.clone(), claim.clone()]);
    assert!(
        refusal.len() == 1 && refusal[0].starts_with(&format!("{place}.ips[0]: 10.30.0.7 is none of")),
        "{refusal:?}"
    );
    // A request of a class that is known to be for netclaim is looked at without any configuration.
    let plain = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": "lab", "capacity": {"requests": {"bandwith": "1G"}}}}]}}});
    assert_eq!(review(&plain, DRIVER_NAME), None);
    assert!(
        said(&[class, plain])[0]
            .starts_with("spec.devices.requests[0].exactly.capacity.requests[bandwith]: no device")
    );
}

#[test]
fn a_class_of_a_set_makes_primary_networks_of_its_requests_and_its_network() {
    let good = good();
    let (mut network, mut class, mut claim) =
        (good["network"].clone(), good["class"].clone(), good["two-requests"].clone());
    let parameters = class.pointer_mut("/spec/config/0/opaque/parameters").expect("parameters");
    merge(parameters, json!({"interfaceName": null, "primary": true}));
    claim["spec"]["devices"]["config"] = json!([]);
    let said = |network: &Value| {
        let reviews = review_set(&[network.clone(), class.clone(), claim.clone()], DRIVER_NAME);
        let reviews: Vec<Review> = reviews.into_iter().map(|review| review.expect("ours")).collect();
        assert_eq!((&reviews[0].warnings, &reviews[1].errors), (&vec![], &vec![]));
        (texts(&reviews[1].warnings), texts(&reviews[2].errors))
    };
    let (warnings, errors) = said(&network);
    let expected = "spec.config[0].opaque.parameters.primary: ClaimNetwork lab: the node does not reach";
    assert!(warnings.iter().any(|warning| warning.starts_with(expected)), "{warnings:?}");
    let expected = "spec.devices.requests[1].exactly.deviceClassName: requests a and b would both";
    assert!(errors.len() == 1 && errors[0].starts_with(expected), "{errors:?}");
    let plugins = json!([{"type": "bridge", "isGateway": true, "ipam": "${addresses}"}]);
    merge(
        &mut network["spec"],
        json!({"uplink": null, "cni": {"plugins": plugins}, "allow": null, "capacity": null}),
    );
    merge(&mut network["spec"], json!({"addresses": {"reserved": null}}));
    let (warnings, _) = said(&network);
    assert!(!warnings.iter().any(|warning| warning.contains("does not reach")), "{warnings:?}");
}

#[test]
fn networks_of_a_set_that_hand_out_the_same_addresses_warn_of_each_other() {
    let (one, mut other) = (good()["network"].clone(), good()["network"].clone());
    other["metadata"]["name"] = json!("lab2");
    let warnings: Vec<Vec<String>> = review_set(&[one, other], DRIVER_NAME)
        .into_iter()
        .map(|review| texts(&review.expect("ours").warnings))
        .collect();
    assert!(
        warnings[0][0].contains("ClaimNetwork lab2 hands")
            && warnings[1][0].contains("ClaimNetwork lab hands"),
        "{warnings:?}"
    );
}

#[test]
fn objects_of_other_groups_are_not_taken_for_those_of_a_set() {
    let (one, mut other) = (good()["network"].clone(), good()["network"].clone());
    other["metadata"]["name"] = json!("lab2");
    let of_others =
        json!({"apiVersion": "config.openshift.io/v1", "kind": "ClaimNetwork", "metadata": {"name": "lab"}});
    let reviews = review_set(&[of_others, one, other], DRIVER_NAME);
    let warnings = &reviews[1].as_ref().expect("ours").warnings;
    assert!(
        warnings.iter().any(|warning| warning.problem.contains("ClaimNetwork lab2 hands")),
        "{warnings:?}"
    );

    let mut class = good()["class"].clone();
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": "lab"}}]}}});
    assert!(review_set(&[class.clone(), claim.clone()], DRIVER_NAME)[1].is_some());
    class["apiVersion"] = json!("example.com/v1");
    assert!(review_set(&[class, claim], DRIVER_NAME)[1].is_none());
}

#[test]
fn no_value_makes_a_review_panic() {
    let hostile = [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!(""),
        json!("\u{0}"),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"": {}}),
    ];
    for (_, object) in good() {
        for pointer in pointers(&object) {
            for value in &hostile {
                let mut bad = object.clone();
                *bad.pointer_mut(&pointer).expect("a place") = value.clone();
                let _ = review(&bad, DRIVER_NAME);
            }
        }
    }
}

/// The pointers to all values in a value.
fn pointers(value: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut inner = |key: &str, value: &Value| {
        let key = key.replace('~', "~0").replace('/', "~1");
        found.extend(pointers(value).into_iter().map(|rest| format!("/{key}{rest}")));
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| inner(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| inner(&i.to_string(), value)),
        _ => {}
    }
    found
}
