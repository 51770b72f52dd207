//! Translations, from documents to documents.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use netclaim_api::network::ClaimNetworkSpec;
use netclaim_api::uplink_policy::UplinkPolicySpec;
use serde_json::{Value, json};

use super::choice::Choice;
use super::fake::Fake;
use super::input::Input;
use super::report::Migration;
use super::translate::migrate;
use super::whereabouts::HandedOver;
use crate::documents;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn migration(documents: Vec<Value>, namespace: Option<&str>, handed_over: &[&str]) -> Migration {
    let handed_over = HandedOver::Parts(handed_over.iter().map(|span| span.parse().unwrap()).collect());
    let choice = Choice { namespace: namespace.map(str::to_owned), ..Choice::default() };
    migrate(&Input::of(documents, "default", false), &choice, &handed_over)
}

/// Translates what `from` and `selector` choose of all namespaces.
fn chosen(documents: Vec<Value>, from: &[&str], selector: &str) -> Migration {
    let from = from.iter().map(|of| (*of).to_owned()).collect();
    let selector = if selector.is_empty() { None } else { Some(super::choice::selector(selector).unwrap()) };
    let choice = Choice { from, selector: selector.unwrap_or_default(), ..Choice::default() };
    migrate(&Input::of(documents, "default", false), &choice, &HandedOver::Parts(Vec::new()))
}

fn nad(namespace: &str, name: &str, config: &Value) -> Value {
    let config = config.as_str().map_or_else(|| config.to_string(), str::to_owned);
    json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"namespace": namespace, "name": name}, "spec": {"config": config}})
}

fn macvlan(namespace: &str, name: &str) -> Value {
    nad(namespace, name, &json!({"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1"}))
}

fn workload(kind: &str, namespace: &str, name: &str, networks: &str) -> Value {
    let pod = json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
        "spec": {"containers": [{"name": "app"}]}});
    let mut object = match kind {
        "Pod" => json!({"apiVersion": "v1", "metadata": pod["metadata"], "spec": pod["spec"]}),
        "CronJob" => json!({"apiVersion": "batch/v1", "spec": {"jobTemplate": {"spec": {"template": pod}}}}),
        "Job" => json!({"apiVersion": "batch/v1", "spec": {"template": pod}}),
        _ => json!({"apiVersion": "apps/v1", "spec": {"template": pod}}),
    };
    object["kind"] = json!(kind);
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["name"] = json!(name);
    object
}

fn of_kind<'a>(migration: &'a Migration, kind: &str) -> Vec<&'a Value> {
    migration.objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn names(migration: &Migration, kind: &str) -> Vec<String> {
    of_kind(migration, kind)
        .iter()
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn refusals(migration: &Migration) -> Vec<String> {
    migration.refused.iter().map(ToString::to_string).collect()
}

/// Checks that a file has the content, and writes it with `NETCLAIM_GENERATE=1`.
fn assert_fresh(path: &Path, content: &str) {
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(path, content).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(committed == content, "{} is stale: run `make generate` and commit the result", path.display());
}

fn assert_valid(migration: &Migration) {
    for network in of_kind(migration, "ClaimNetwork") {
        let spec: ClaimNetworkSpec = serde_json::from_value(network["spec"].clone()).unwrap();
        assert_eq!(spec.problems(network["metadata"]["name"].as_str().unwrap()), []);
    }
}

#[test]
fn every_case_has_its_outcome() {
    let golden = root().join("cli/src/migrate/golden");
    let cases = std::fs::read_to_string(golden.join("cases.yaml")).unwrap();
    let cases: Vec<Value> = serde_saphyr::from_str(&cases).unwrap();
    assert!(cases.len() >= 40);
    let outcomes: Vec<Value> = cases
        .iter()
        .map(|case| {
            let mut nad = nad("shop", "net", &case["config"]);
            nad["metadata"]["annotations"] = case["annotations"].clone();
            let web = workload("Deployment", "shop", "web", case["networks"].as_str().unwrap());
            let migration = migration(vec![nad, web], None, &[]);
            assert_valid(&migration);
            outcome(&case["case"], &migration)
        })
        .collect();
    let text = serde_saphyr::to_string_with_options(
        &outcomes,
        serde_saphyr::ser_options! { prefer_block_scalars: false },
    );
    let head = "# What becomes of cases.yaml. Generated from cli/src/migrate by `make generate`.\n";
    assert_fresh(&golden.join("outcomes.yaml"), &format!("{head}{}", text.unwrap()));
}

/// What differs from case to case.
fn outcome(case: &Value, migration: &Migration) -> Value {
    let mut outcome = json!({"case": case});
    let texts = |findings: &[super::report::Finding]| -> Vec<String> {
        findings
            .iter()
            .map(|finding| finding.to_string().replace("NetworkAttachmentDefinition", "NAD"))
            .collect()
    };
    for network in of_kind(migration, "ClaimNetwork") {
        let mut spec = network["spec"].clone();
        spec.as_object_mut().unwrap().remove("namespaces");
        outcome["network"] = spec;
    }
    for template in of_kind(migration, "ResourceClaimTemplate") {
        let configs = template["spec"]["spec"]["devices"]["config"].as_array().unwrap();
        outcome["claim"] = configs
            .iter()
            .map(|config| {
                let mut parameters = config["opaque"]["parameters"].clone();
                let fields = parameters.as_object_mut().unwrap();
                fields.retain(|key, _| key != "apiVersion" && key != "kind");
                json!({"request": config["requests"][0], "parameters": fields})
            })
            .collect();
    }
    for (key, findings) in [("notes", &migration.notes), ("refused", &migration.refused)] {
        if !findings.is_empty() {
            outcome[key] = json!(texts(findings));
        }
    }
    outcome
}

#[test]
fn every_kind_of_workload_is_patched_where_its_pods_are_described() {
    let kinds = ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "CronJob", "Job", "Pod"];
    let objects = kinds.iter().map(|kind| workload(kind, "shop", "web", "lan"));
    let migration = migration(objects.chain([macvlan("shop", "lan")]).collect(), None, &[]);
    assert_eq!(refusals(&migration), [""; 0]);
    let found: BTreeSet<&str> =
        migration.workloads.iter().map(|change| change.object.kind.as_str()).collect();
    assert_eq!(found, BTreeSet::from(kinds));
    for change in &migration.workloads {
        let path = match change.object.kind.as_str() {
            "Pod" => "",
            "CronJob" => "/spec/jobTemplate/spec/template",
            _ => "/spec/template",
        };
        let template = format!("{}-web", change.object.kind.to_lowercase());
        let expected = json!({
            "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": null}},
            "spec": {"resourceClaims": [{"name": "networks", "resourceClaimTemplateName": template}],
                "containers": [{"name": "app", "resources": {"claims": [{"name": "networks"}]}}]},
        });
        assert_eq!(change.patch.pointer(path), Some(&expected), "{}", change.object);
        let can_change = !matches!(change.object.kind.as_str(), "Job" | "Pod");
        assert_eq!(change.command.contains("patch --local"), !can_change, "{}", change.command);
    }
}

#[test]
fn claims_that_a_pod_has_stay() {
    let mut web = workload("Deployment", "shop", "web", "lan");
    let spec = &mut web["spec"]["template"]["spec"];
    spec["resourceClaims"] = json!([{"name": "networks", "resourceClaimName": "gpu"}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "networks", "request": "gpu"}]});
    spec["initContainers"] = json!([{"name": "setup"}]);
    let migration = migration(vec![web, macvlan("shop", "lan")], None, &[]);
    let spec = &migration.workloads[0].patch["spec"]["template"]["spec"];
    assert_eq!(
        spec["containers"][0]["resources"]["claims"],
        json!([{"name": "networks", "request": "gpu"}, {"name": "networks-2"}])
    );
    assert_eq!(spec["initContainers"][0]["resources"]["claims"], json!([{"name": "networks-2"}]));
    assert_eq!(spec["resourceClaims"][0]["name"], "networks-2");
}

#[test]
fn pods_of_controllers_are_translated_with_these() {
    let owned = |api: &str, kind: &str| {
        let mut pod = workload("Pod", "shop", "web-0", "lan");
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": api, "kind": kind, "name": "web", "controller": true}]);
        pod
    };
    let pod = || vec![owned("apps/v1", "StatefulSet"), macvlan("shop", "lan")];
    let with_owner = pod().into_iter().chain([workload("StatefulSet", "shop", "web", "lan")]);
    let found = migration(with_owner.collect(), None, &[]);
    assert_eq!((found.workloads.len(), found.refused.len()), (1, 0));
    let found = migration(pod(), None, &[]);
    assert_eq!(found.workloads.len(), 0);
    assert!(refusals(&found)[0].contains("add StatefulSet shop/web to the input"), "{:?}", refusals(&found));
    let found =
        migrate(&Input::of(pod(), "default", true), &Choice::default(), &HandedOver::Parts(Vec::new()));
    assert_eq!(found.refused, [], "the owner is gone, or younger than the list");
    let found = migration(vec![owned("kubevirt.io/v1", "VirtualMachineInstance")], None, &[]);
    assert!(refusals(&found)[0].contains("VirtualMachineInstance web makes this object"));
}

#[test]
fn pods_that_netclaim_cannot_serve_are_refused() {
    let mut host = workload("DaemonSet", "shop", "host", "lan");
    host["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    let mut default = workload("Deployment", "shop", "default", "");
    default["spec"]["template"]["metadata"]["annotations"]["v1.multus-cni.io/default-network"] = json!("net");
    let mut mac = workload("Deployment", "shop", "mac", r#"[{"name": "lan", "mac": "02:00:00:00:00:01"}]"#);
    mac["spec"]["replicas"] = json!(2);
    let rollout = json!({"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"template": {"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "lan"}}}}});
    let found = migration(vec![host, default, mac, rollout, macvlan("shop", "lan")], None, &[]);
    let fields: Vec<String> =
        found.refused.iter().map(|finding| format!("{} {}", finding.object.name, finding.field)).collect();
    let networks = "spec.template.metadata.annotations[k8s.v1.cni.cncf.io/networks]";
    let expected = [
        "host spec.template.spec.hostNetwork".to_owned(),
        "default spec.template.metadata.annotations[v1.multus-cni.io/default-network]".to_owned(),
        format!("mac {networks}[0].mac"),
        format!("web {networks}"),
    ];
    assert_eq!(fields, expected);
    assert!(found.workloads.is_empty());
}

#[test]
fn a_workload_is_translated_whole_or_not_at_all() {
    let sriov = nad("shop", "vf", &json!({"cniVersion": "1.0.0", "type": "sriov"}));
    let objects = vec![macvlan("shop", "lan"), sriov, workload("Deployment", "shop", "web", "lan,vf")];
    let found = migration(objects, None, &[]);
    assert_eq!(names(&found, "ClaimNetwork"), ["shop-lan"]);
    assert_eq!((found.workloads.len(), names(&found, "ResourceClaimTemplate").len()), (0, 0));
    assert!(
        refusals(&found)
            .iter()
            .any(|text| text.contains("NetworkAttachmentDefinition shop/vf cannot be translated"))
    );
}

#[test]
fn the_report_has_no_lines_that_tenants_write() {
    let networks = "[{\"name\": \"x\\n  kubectl delete namespaces --all\\u001b[2J\"}]";
    let found = migration(vec![workload("Deployment", "shop", "web", networks)], None, &[]);
    let report = found.to_string();
    assert_eq!(report.lines().count(), 2, "{report}");
    assert!(!report.contains('\u{1b}'));

    let escapes = "web\u{9b}2J\u{1b}[2J\n";
    let mut web = workload("Deployment", "shop", escapes, "lan");
    web["spec"]["template"]["spec"]["containers"][0]["name"] = json!(escapes);
    let found =
        migration(vec![web, macvlan("shop", "lan"), workload("Pod", escapes, escapes, "gone")], None, &[]);
    let report = found.to_string();
    assert!(report.contains("patch deployment") && report.contains("NOT TRANSLATED"), "{report}");
    assert!(!report.contains(|c: char| c.is_control() && c != '\n'), "{report:?}");
    assert!(!report.contains("2J\n"), "{report:?}");
}

#[test]
fn a_setting_of_a_refused_workload_is_not_allowed_to_claims() {
    let networks = r#"[{"name": "lan", "mac": "02:00:00:00:00:01"}, {"name": "gone"}]"#;
    let found =
        migration(vec![macvlan("shop", "lan"), workload("Deployment", "shop", "web", networks)], None, &[]);
    assert_eq!(of_kind(&found, "ClaimNetwork")[0]["spec"].get("allow"), None);
}

#[test]
fn a_network_is_offered_where_its_definition_is_and_where_it_is_used() {
    let objects = || {
        vec![
            macvlan("default", "lan"),
            macvlan("bank", "lan"),
            workload("Deployment", "shop", "web", "default/lan"),
            workload("Deployment", "bank", "web", "lan"),
        ]
    };
    let selector = |network: &Value| network["spec"]["namespaces"]["selector"].clone();
    let of_shop = migration(objects(), Some("shop"), &[]);
    assert_eq!(names(&of_shop, "ClaimNetwork"), ["default-lan"], "what its workloads use, and no more");
    let expected = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default", "shop"]}]});
    assert_eq!(selector(of_kind(&of_shop, "ClaimNetwork")[0]), expected);
    let all = migration(objects(), None, &[]);
    assert_eq!(names(&all, "ClaimNetwork"), ["bank-lan", "default-lan"]);
    assert_eq!(names(&all, "DeviceClass"), ["bank-lan", "default-lan"]);
    let own = json!({"matchLabels": {"kubernetes.io/metadata.name": "bank"}});
    assert_eq!(selector(of_kind(&all, "ClaimNetwork")[0]), own);
    let shared = |migration: &Migration| {
        of_kind(migration, "ClaimNetwork")
            .into_iter()
            .find(|network| network["metadata"]["name"] == "default-lan")
            .cloned()
    };
    assert_eq!(shared(&all), shared(&of_shop), "no run undoes another one");
}

#[test]
fn a_second_run_takes_nothing_from_workloads_that_have_moved() {
    let asks = |networks: &str| workload("Deployment", "shop", "web", networks);
    let web = asks(r#"[{"name": "lan", "namespace": "default", "mac": "02:00:00:00:00:01"}]"#);
    let shared = [macvlan("default", "lan"), workload("Deployment", "bank", "web", "default/lan")];
    let first = migration(shared.iter().cloned().chain([web]).collect(), Some("shop"), &[]);
    assert_eq!(of_kind(&first, "ClaimNetwork")[0]["spec"]["allow"], json!({"mac": {}}));

    let mut moved = asks("");
    moved["spec"]["template"]["metadata"] = json!({});
    let mut objects: Vec<Value> = shared.into_iter().chain([moved]).collect();
    objects.extend(first.objects.iter().cloned());
    let second = migration(objects.clone(), Some("lab"), &[]);
    assert_eq!(names(&second, "ClaimNetwork"), [""; 0]);
    let second = migration(objects.clone(), Some("default"), &[]);
    assert_eq!(refusals(&second), [""; 0]);
    assert_eq!(of_kind(&second, "ClaimNetwork"), of_kind(&first, "ClaimNetwork"));
    assert_eq!(of_kind(&second, "DeviceClass"), of_kind(&first, "DeviceClass"));

    let network = objects.iter_mut().find(|object| object["kind"] == "ClaimNetwork").unwrap();
    network["spec"]["namespaces"]["selector"] = json!({"matchLabels": {"team": "web"}});
    let changed = migration(objects, Some("bank"), &[]);
    let selector = &of_kind(&changed, "ClaimNetwork")[0]["spec"]["namespaces"]["selector"];
    assert_eq!(selector, &json!({"matchLabels": {"team": "web"}}));
    assert!(changed.notes.iter().any(|note| note.reason.contains("make sure that it selects bank, default")));
}

#[test]
fn a_network_keeps_its_name_when_another_definition_would_get_the_same() {
    let mut objects = vec![macvlan("a-b", "c")];
    let first = migration(objects.clone(), None, &[]);
    objects.push(macvlan("a", "b-c"));
    objects.extend(first.objects);
    let second = names(&migration(objects.clone(), None, &[]), "ClaimNetwork");
    assert_eq!(second[1], "a-b-c");
    assert!(second[0].starts_with("a-b-c-"), "{second:?}");
}

#[test]
fn an_object_of_another_owner_is_not_replaced() {
    for (api, kind) in [("netclaim.dev/v1alpha1", "ClaimNetwork"), ("resource.k8s.io/v1", "DeviceClass")] {
        let mut objects = vec![macvlan("shop", "lan")];
        let other =
            |name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": {}});
        objects.push(other("shop-lan"));
        let found = migration(objects.clone(), None, &[]);
        let name = names(&found, "ClaimNetwork").remove(0);
        assert!(name.starts_with("shop-lan-"), "{name}");
        objects.push(other(&name));
        let found = migration(objects, None, &[]);
        assert!(found.objects.is_empty());
        let expected = format!("{kind} {name} exists and is not made from it");
        assert!(refusals(&found)[0].contains(&expected), "{:?}", refusals(&found));
    }
}

#[test]
fn the_order_of_the_input_changes_nothing() {
    let mut objects = vec![
        macvlan("a-b", "c"),
        macvlan("a", "b-c"),
        workload("Deployment", "a", "web", "b-c, a-b/c"),
        workload("Job", "a", "web", "b-c"),
    ];
    let text = |objects: &[Value]| {
        let found = migration(objects.to_vec(), None, &[]);
        assert_valid(&found);
        super::yaml(&found.objects).unwrap() + &found.to_string()
    };
    let first = text(&objects);
    objects.reverse();
    assert_eq!(text(&objects), first);
    assert_eq!(text(&[json!({"apiVersion": "v1", "kind": "List", "items": objects})]), first);
}

#[test]
fn the_output_means_the_same_to_every_reader_of_yaml() {
    let config = json!({"cniVersion": "1.0.0", "type": "odd", "a": "on", "b": "no", "c": "0x10", "d": "52:54:00:12:34:56", "e": "1e3",
        "f": "${x}: #", "g": "", "h": "10.0", "i": null, "j": [], "k": "y", "l": "~", "m": "line\nline"});
    let found = migration(vec![nad("shop", "odd", &config)], None, &[]);
    let text = super::yaml(&found.objects).unwrap();
    assert_eq!(documents::read(&text).unwrap(), found.objects);
    for quoted in ["on", "no", "52:54:00:12:34:56", "1e3", "y"] {
        assert!(
            text.contains(&format!(": '{quoted}'\n")) || text.contains(&format!(": \"{quoted}\"\n")),
            "{quoted}: {text}"
        );
    }
}

fn whereabouts(namespace: &str, name: &str, exclude: &[&str]) -> Value {
    let ipam = json!({"type": "whereabouts", "range": "10.60.0.0/22", "exclude": exclude, "gateway": "10.60.0.1",
        "routes": [{"dst": "10.0.0.0/8"}]});
    nad(
        namespace,
        name,
        &json!({"cniVersion": "0.3.1", "name": "lan", "type": "macvlan", "master": "eth1", "ipam": ipam}),
    )
}

fn pool(used: &Value) -> Value {
    json!({"apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": {"namespace": "kube-system", "name": "10.60.0.0-22"}, "spec": {"range": "10.60.0.0/22", "allocations": used}})
}

#[test]
fn a_part_of_a_pool_of_whereabouts_is_handed_over_without_what_pods_have_of_it() {
    let used = json!({"9": {"id": "a", "podref": "shop/web-0", "ifname": "net1"}, "523": {"id": "b", "podref": "shop/web-1"},
        "524": {"id": "c", "podref": "shop/gone"}, "525": {"id": "d", "podref": ""}});
    let mut pod = workload("Pod", "shop", "web-1", "lan");
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true}]);
    let owner = workload("StatefulSet", "shop", "web", "lan");
    let objects =
        vec![whereabouts("shop", "lan", &["10.60.0.0/28", "10.60.2.0/23"]), pool(&used), pod, owner];
    let found = migration(objects, None, &["10.60.2.0/23"]);
    assert_valid(&found);
    assert_eq!(refusals(&found), [""; 0]);
    let spec = &of_kind(&found, "ClaimNetwork")[0]["spec"];
    let expected = json!({
        "ranges": [{"subnet": "10.60.0.0/22", "rangeStart": "10.60.2.0", "gateway": "10.60.0.1",
            "exclude": ["10.60.2.11", "10.60.2.12", "10.60.2.13"]}],
        "routes": [{"dst": "10.0.0.0/8"}],
    });
    assert_eq!(spec["addresses"], expected);
    assert_eq!(spec["cni"]["plugins"][0]["ipam"], "${addresses}");
    assert_eq!(spec["cni"].get("name"), None, "no leases are shared");
    assert!(
        found.notes.iter().any(|note| note.reason.contains("10.60.2.11 (shop/web-1)")),
        "{:?}",
        found.notes
    );
}

#[test]
fn addresses_that_whereabouts_still_hands_out_are_not_handed_over() {
    let refused = |others: Vec<Value>, handed_over: &[&str]| {
        let own = whereabouts("shop", "lan", &["10.60.2.0/23"]);
        let found = migration(others.into_iter().chain([own]).collect(), Some("shop"), handed_over);
        assert!(found.objects.is_empty());
        refusals(&found).join("; ")
    };
    let text = refused(vec![pool(&json!({}))], &[]);
    assert!(text.contains("spec.config.ipam.type: ") && text.contains("--handed-over PART"), "{text}");
    let text = refused(vec![pool(&json!({})), whereabouts("bank", "lan", &[])], &["10.60.2.0/23"]);
    assert!(text.contains("write it into ipam.exclude of NetworkAttachmentDefinition bank/lan"), "{text}");
    let text = refused(vec![pool(&json!({}))], &["10.60.1.0/24"]);
    assert!(text.contains("whereabouts still hands out 10.60.1.0/24"), "{text}");
    let text = refused(vec![pool(&json!({}))], &["10.60.2.0/24", "10.60.3.0/24"]);
    assert!(text.contains("has 2 parts of 10.60.0.0/22"), "{text}");
    let by_file = nad(
        "bank",
        "odd",
        &json!({"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1", "ipam": {"type": "whereabouts"}}),
    );
    let text = refused(vec![pool(&json!({})), by_file], &["10.60.2.0/23"]);
    assert!(text.contains("cannot tell which addresses bank/odd hands out"), "{text}");
    let text = refused(vec![], &["10.60.2.0/23"]);
    assert!(text.contains("the input has no IPPool of 10.60.0.0/22"), "{text}");
    let mut other = pool(&json!({}));
    other["metadata"]["name"] = json!("storage-10.60.0.0-22");
    let text = refused(vec![other], &["10.60.2.0/23"]);
    assert!(
        text.contains("the input has no IPPool of 10.60.0.0/22"),
        "a pool of another network_name: {text}"
    );
}

#[test]
fn addresses_that_whereabouts_never_handed_out_are_not_handed_over() {
    let mut lan = whereabouts("shop", "lan", &[]);
    let ipam = json!({"type": "whereabouts", "range": "10.60.0.0/22", "range_start": "10.60.0.10", "range_end": "10.60.2.200",
        "exclude": ["10.60.2.5", "10.60.2.0/23", "10.60.2.16/28", "10.60.0.0/28"]});
    let config = json!({"cniVersion": "0.3.1", "type": "macvlan", "master": "eth1", "ipam": ipam});
    lan["spec"]["config"] = json!(config.to_string());
    let used = json!({"523": {"podref": "shop/gone"}, "530": {"podref": "shop/gone"}});
    let found = migration(vec![lan, pool(&used)], None, &["10.60.2.0/23"]);
    assert_eq!(refusals(&found), [""; 0]);
    let range = &of_kind(&found, "ClaimNetwork")[0]["spec"]["addresses"]["ranges"][0];
    let expected = json!({"subnet": "10.60.0.0/22", "rangeStart": "10.60.2.0", "rangeEnd": "10.60.2.200",
        "exclude": ["10.60.2.5", "10.60.2.16/28", "10.60.2.11"]});
    assert_eq!(range, &expected);
}

#[test]
fn a_part_that_is_written_in_several_entries_is_handed_over() {
    let lan = whereabouts("shop", "lan", &["10.60.2.0/24", "10.60.3.0/24", "10.60.3.7"]);
    let found = migration(vec![lan, pool(&json!({}))], None, &["10.60.2.0/23"]);
    let range = &of_kind(&found, "ClaimNetwork")[0]["spec"]["addresses"]["ranges"][0];
    assert_eq!(range["exclude"], json!(["10.60.3.7"]));
}

#[test]
fn a_range_that_is_taken_over_from_whereabouts_is_handed_out_as_a_whole() {
    let used = json!({"9": {"podref": "shop/web-1"}, "12": {"podref": "shop/gone"}, "13": {"podref": ""}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web-1", "uid": "u"}});
    let mut objects = vec![whereabouts("shop", "lan", &["10.60.0.16/28"]), pool(&used), pod];
    let run = |objects: &[Value]| {
        migrate(&Input::of(objects.to_vec(), "default", false), &Choice::default(), &HandedOver::All)
    };
    let text = refusals(&run(&objects)).join("; ");
    assert!(
        text.contains("not leased: 10.60.0.9 (shop/web-1); run `netclaimctl migrate whereabouts"),
        "{text}"
    );

    objects.push(json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressLease", "metadata": {"name": "shop-lan.10.60.0.9"}}));
    let found = run(&objects);
    assert_valid(&found);
    assert_eq!(refusals(&found), [""; 0]);
    let expected = json!({
        "ranges": [{"subnet": "10.60.0.0/22", "gateway": "10.60.0.1", "exclude": ["10.60.0.13", "10.60.0.16/28"]}],
        "routes": [{"dst": "10.0.0.0/8"}],
    });
    assert_eq!(of_kind(&found, "ClaimNetwork")[0]["spec"]["addresses"], expected);
    assert!(
        found.notes.iter().any(|note| note.reason.contains("10.60.0.12 (shop/gone)")),
        "{:?}",
        found.notes
    );

    // The pod has come back with a claim, and the lease of the earlier one is gone.
    objects.pop();
    objects.extend(found.objects.clone());
    let again = run(&objects);
    assert_eq!((refusals(&again), again.objects), (Vec::new(), found.objects));
    let without_pool: Vec<Value> = objects.into_iter().filter(|object| object["kind"] != "IPPool").collect();
    let text = refusals(&run(&without_pool)).join("; ");
    assert!(text.contains("the input has no IPPool of 10.60.0.0/22"), "{text}");
}

#[test]
fn networks_of_one_pool_of_whereabouts_share_one_pool() {
    let objects = vec![
        whereabouts("shop", "lan", &["10.60.2.0/23"]),
        whereabouts("bank", "lan", &["10.60.2.0/23"]),
        pool(&json!({"600": {"podref": "bank/gone"}})),
    ];
    let found = migration(objects, Some("bank"), &["10.60.2.0/23"]);
    assert_valid(&found);
    let [pool] = of_kind(&found, "AddressPool")[..] else { panic!("{:?}", found.objects) };
    assert_eq!(pool["spec"]["ranges"][0]["exclude"], json!(["10.60.2.88"]));
    assert_eq!(names(&found, "ClaimNetwork"), ["bank-lan"]);
    assert_eq!(
        of_kind(&found, "ClaimNetwork")[0]["spec"]["addresses"],
        json!({"poolName": pool["metadata"]["name"]})
    );
}

/// The blocks of code of the guide's worked example: input, command, output, report, and the Deployment
/// afterwards.
fn blocks_of_guide(guide: &str) -> Vec<&str> {
    let (_, example) = guide.split_once("## A worked example").unwrap();
    example.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap().1).collect()
}

#[test]
fn the_guide_shows_what_the_command_prints() {
    let path = root().join("docs/migrate-from-multus.md");
    let guide = std::fs::read_to_string(&path).unwrap();
    let blocks = blocks_of_guide(&guide);
    let handed_over = blocks[1].trim().rsplit_once(' ').unwrap().1;
    let found = migration(documents::read(blocks[0]).unwrap(), None, &[handed_over]);
    assert_valid(&found);
    let (yaml, report) = (super::yaml(&found.objects).unwrap(), found.to_string());
    let block = |text: &str| format!("\n{text}```");
    let fresh =
        guide.replacen(&block(blocks[2]), &block(&yaml), 1).replacen(&block(blocks[3]), &block(&report), 1);
    assert_fresh(&path, &fresh);
    let after: Value = serde_saphyr::from_str(blocks[4]).unwrap();
    let spec = &found.workloads[0].patch["spec"]["template"]["spec"];
    assert_eq!(after["template"]["spec"]["resourceClaims"], spec["resourceClaims"]);
    let claims = |spec: &Value| spec["containers"][0]["resources"]["claims"].clone();
    assert_eq!(claims(&after["template"]["spec"]), claims(spec));
    assert_eq!(after["template"]["metadata"].get("annotations"), None);
}

#[test]
fn the_policy_of_the_guide_is_accepted() {
    let guide = std::fs::read_to_string(root().join("docs/migrate-from-multus.md")).unwrap();
    let block = guide.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let policy: Value = serde_saphyr::from_str(block).unwrap();
    let spec: UplinkPolicySpec = serde_json::from_value(policy["spec"].clone()).unwrap();
    assert_eq!(spec.problems(), []);
    let labels = policy["spec"]["nodeSelector"]["matchLabels"].as_object().unwrap();
    for key in labels.keys() {
        assert!(guide.contains(&format!("kubectl label node NODE {key}=")), "step 0 sets it");
        assert!(
            guide.contains(&format!("kubectl label node NODE {key}-`")),
            "step 7 removes it from one node"
        );
    }
}

fn labelled(mut nad: Value, label: &str, value: &str) -> Value {
    nad["metadata"]["labels"] = json!({label: value});
    nad
}

#[test]
fn only_chosen_definitions_are_translated() {
    let objects = || {
        vec![
            labelled(macvlan("shop", "lan"), "import", "yes"),
            macvlan("shop", "wan"),
            labelled(macvlan("bank", "lan"), "import", "no"),
            workload("Deployment", "shop", "web", "lan"),
            workload("Deployment", "shop", "other", "wan"),
            workload("Deployment", "shop", "default", ""),
        ]
    };
    let by_label = chosen(objects(), &[], "import=yes");
    assert_eq!(names(&by_label, "ClaimNetwork"), ["shop-lan"]);
    assert_eq!(names(&by_label, "ResourceClaimTemplate"), ["deployment-web"]);
    assert_eq!(refusals(&by_label), [""; 0], "workloads without a chosen network are not looked at");
    assert_eq!(names(&chosen(objects(), &["bank"], ""), "ClaimNetwork"), ["bank-lan"]);
    assert_eq!(
        names(&chosen(objects(), &["bank", "shop"], "import"), "ClaimNetwork"),
        ["bank-lan", "shop-lan"]
    );
    assert_eq!(names(&chosen(objects(), &["bank"], "import=yes"), "ClaimNetwork"), [""; 0]);
    let all = chosen(objects(), &[], "");
    let of_all = |name: &str| {
        of_kind(&all, "ClaimNetwork").into_iter().find(|network| network["metadata"]["name"] == name).cloned()
    };
    assert_eq!(
        of_kind(&by_label, "ClaimNetwork").into_iter().next().cloned(),
        of_all("shop-lan"),
        "no choice changes a ClaimNetwork"
    );
}

#[test]
fn a_workload_with_a_network_that_is_not_chosen_is_not_translated() {
    let networks = r#"[{"name": "lan", "mac": "02:00:00:00:00:01"}, {"name": "lan", "namespace": "bank"}]"#;
    let objects =
        vec![macvlan("shop", "lan"), macvlan("bank", "lan"), workload("Deployment", "shop", "web", networks)];
    let found = chosen(objects, &["shop"], "");
    assert_eq!(names(&found, "ClaimNetwork"), ["shop-lan"]);
    assert_eq!(of_kind(&found, "ClaimNetwork")[0]["spec"].get("allow"), None);
    assert_eq!(names(&found, "ResourceClaimTemplate"), [""; 0]);
    let [refusal] = &refusals(&found)[..] else { panic!("{:?}", refusals(&found)) };
    assert!(refusal.starts_with("Deployment shop/web: "), "{refusal}");
    assert!(refusal.contains("bank/lan is not chosen by --selector and --from"), "{refusal}");
}

#[test]
fn names_do_not_depend_on_the_choice() {
    let objects = || vec![macvlan("a-b", "c"), macvlan("a", "b-c")];
    let all = names(&chosen(objects(), &[], ""), "ClaimNetwork");
    assert_eq!(names(&chosen(objects(), &["a"], ""), "ClaimNetwork"), all[..1]);
    assert_eq!(names(&chosen(objects(), &["a-b"], ""), "ClaimNetwork"), all[1..]);
}

#[test]
fn a_definition_that_is_not_chosen_still_has_to_exclude_what_is_handed_over() {
    let objects = vec![
        whereabouts("shop", "lan", &["10.60.2.0/23"]),
        whereabouts("bank", "lan", &[]),
        pool(&json!({})),
    ];
    let choice = Choice { from: ["shop".to_owned()].into(), ..Choice::default() };
    let parts = HandedOver::Parts(vec!["10.60.2.0/23".parse().unwrap()]);
    let found = migrate(&Input::of(objects, "default", false), &choice, &parts);
    assert!(
        refusals(&found)[0].contains("write it into ipam.exclude of NetworkAttachmentDefinition bank/lan")
    );
}

/// Runs the command once in a fake cluster; returns whether it succeeds, and what it prints.
async fn applied(fake: &Fake) -> (bool, String, String) {
    let cli: crate::Cli = clap::Parser::try_parse_from(["netclaimctl", "migrate", "--apply", "-A"]).unwrap();
    let crate::Command::Migrate(args) = cli.command else { panic!("another command") };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = super::translate(Some(&fake.client()), &args, &mut out, &mut err).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (code == std::process::ExitCode::SUCCESS, text(out), text(err))
}

#[tokio::test]
async fn the_translation_is_applied_and_workloads_stay() {
    let fake = Fake::new();
    fake.put("network-attachment-definitions", &macvlan("shop", "lan"));
    let web = fake.put("deployments", &workload("Deployment", "shop", "web", "lan"));
    let (is_done, out, err) = applied(&fake).await;
    let expected = "claimnetwork.netclaim.dev/shop-lan created\ndeviceclass.resource.k8s.io/shop-lan created\n\
                    resourceclaimtemplate.resource.k8s.io/deployment-web created in namespace shop\n";
    assert_eq!((is_done, out.as_str()), (true, expected));
    assert!(err.starts_with("CHANGES") && err.contains("patch deployment web"), "{err}");
    assert_eq!(fake.get("deployments", "shop", "web").unwrap(), web);

    let (is_done, out, _) = applied(&fake).await;
    assert!(is_done && out.lines().all(|line| line.contains(" unchanged")), "{out}");

    fake.put(
        "network-attachment-definitions",
        &nad("shop", "vf", &json!({"cniVersion": "1.0.0", "type": "sriov"})),
    );
    let (is_done, out, err) = applied(&fake).await;
    assert!(!is_done && out.lines().count() == 3, "{out}");
    assert!(err.contains("NOT TRANSLATED"), "{err}");
}

#[tokio::test]
async fn an_object_that_cannot_be_applied_makes_the_command_fail() {
    let fake = Fake::new();
    fake.put("network-attachment-definitions", &macvlan("shop", "lan"));
    fake.refuse("PATCH", "/apis/netclaim.dev/v1alpha1/claimnetworks/shop-lan", Some((409, "Conflict")));
    let (is_done, out, err) = applied(&fake).await;
    assert_eq!((is_done, out.as_str()), (false, "deviceclass.resource.k8s.io/shop-lan created\n"));
    assert!(
        err.starts_with("netclaimctl: claimnetwork.netclaim.dev/shop-lan: another field manager"),
        "{err}"
    );
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    let parse = |line: &str| <crate::Cli as clap::Parser>::try_parse_from(line.split(' ')).map(drop);
    for line in [
        "netclaimctl migrate --apply -f a.yaml",
        "netclaimctl migrate --apply --output json",
        "netclaimctl migrate --selector a=b=c",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    for line in [
        "netclaimctl migrate -f a.yaml -l a=b --from shop --from bank --output json",
        "netclaimctl migrate --apply --taken-over -A",
        "netclaimctl migrate --apply --widen -n shop -l !a",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
    }
}

/// Another tenant's Deployment without pods, which asks for everything that a definition of the namespace
/// `default` could give.
fn intruder() -> Value {
    let networks =
        r#"[{"name": "lan", "namespace": "default", "ips": ["10.0.0.9/24"], "mac": "02:00:00:00:00:09"}]"#;
    let mut intruder = workload("Deployment", "evil", "none", networks);
    intruder["spec"]["replicas"] = json!(0);
    intruder
}

/// A definition in the namespace `default`, and a workload there that sets nothing.
fn of_an_admin() -> Vec<Value> {
    let config =
        json!({"cniVersion": "1.0.0", "type": "macvlan", "master": "eth1", "ipam": {"type": "static"}});
    vec![nad("default", "lan", &config), workload("Deployment", "default", "web", "lan")]
}

fn translated(documents: Vec<Value>, choice: &Choice) -> Migration {
    migrate(&Input::of(documents, "default", false), choice, &HandedOver::Parts(Vec::new()))
}

const NOT_OPENED: [&str; 3] = [
    "Deployment evil/none: spec.template.metadata.annotations[k8s.v1.cni.cncf.io/networks][0]: ClaimNetwork default-lan is not offered to \
     namespace evil: add it to its namespaces.selector, or run this with --widen",
    "Deployment evil/none: spec.template.metadata.annotations[k8s.v1.cni.cncf.io/networks][0].ips: claims for ClaimNetwork default-lan may \
     not set ips: set allow.ips and the plugin's capability, or run this with --widen; then claims of all its namespaces may set it",
    "Deployment evil/none: spec.template.metadata.annotations[k8s.v1.cni.cncf.io/networks][0].mac: claims for ClaimNetwork default-lan may \
     not set mac: set allow.mac and the plugin's capability, or run this with --widen; then claims of all its namespaces may set it",
];

#[test]
fn a_workload_of_a_namespace_that_was_not_named_opens_no_network() {
    let admins = migration(of_an_admin(), None, &[]);
    let unopened = of_kind(&admins, "ClaimNetwork");
    let with_intruder = || of_an_admin().into_iter().chain([intruder()]).collect::<Vec<_>>();

    // The definitions of a namespace are chosen, and its own workloads with them.
    let from = Choice { from: ["default".to_owned()].into(), ..Choice::default() };
    let found = translated(with_intruder(), &from);
    assert_eq!(of_kind(&found, "ClaimNetwork"), unopened);
    assert_eq!(names(&found, "ResourceClaimTemplate"), ["deployment-web"]);
    assert_eq!(refusals(&found), NOT_OPENED);

    // One namespace is translated: the others are told of, and get nothing.
    let one = Choice { namespace: Some("default".to_owned()), widen: true, ..Choice::default() };
    let found = translated(with_intruder(), &one);
    assert_eq!((of_kind(&found, "ClaimNetwork"), refusals(&found)), (unopened, Vec::new()));
    let note = "ClaimNetwork default-lan is not offered to evil, whose workloads name the definition";
    assert!(found.notes.iter().any(|finding| finding.reason.starts_with(note)), "{:?}", found.notes);
}

#[test]
fn a_network_that_exists_is_opened_by_no_workload_unless_the_user_says_so() {
    let mut objects = of_an_admin();
    let first = migration(objects.clone(), None, &[]);
    objects.extend(first.objects.iter().cloned().chain([intruder()]));
    let own = r#"[{"name": "lan", "mac": "02:00:00:00:00:01"}]"#;
    objects.push(workload("Deployment", "default", "web-2", own));

    let again = translated(objects.clone(), &Choice::default());
    assert_eq!(of_kind(&again, "ClaimNetwork"), of_kind(&first, "ClaimNetwork"));
    assert_eq!(names(&again, "ResourceClaimTemplate"), ["deployment-web"]);
    let refused = refusals(&again);
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert!(refused[0].starts_with("Deployment default/web-2: ") && refused[0].contains("may not set mac"));
    assert_eq!(refused[1..], NOT_OPENED);

    let widened = translated(objects, &Choice { widen: true, ..Choice::default() });
    assert_eq!(refusals(&widened), [""; 0]);
    let spec = &of_kind(&widened, "ClaimNetwork")[0]["spec"];
    assert_eq!(spec["allow"], json!({"ips": {}, "mac": {}}));
    assert_eq!(spec["namespaces"]["selector"]["matchExpressions"][0]["values"], json!(["default", "evil"]));
    let told = |text: &str| widened.notes.iter().filter(|note| note.reason.contains(text)).count();
    assert_eq!(told("opens ClaimNetwork default-lan for namespace evil"), 1, "{:?}", widened.notes);
    assert_eq!(
        told("lets claims of all namespaces of ClaimNetwork default-lan set"),
        2,
        "{:?}",
        widened.notes
    );
}

#[test]
fn a_permission_that_an_admin_has_withdrawn_is_not_given_again() {
    let mut objects = of_an_admin();
    let own = r#"[{"name": "lan", "mac": "02:00:00:00:00:01"}]"#;
    objects.push(workload("Deployment", "default", "web-2", own));
    let mut first = migration(objects.clone(), None, &[]);
    let network = first.objects.iter_mut().find(|object| object["kind"] == "ClaimNetwork").unwrap();
    assert_eq!(network["spec"]["allow"], json!({"mac": {}}));
    network["spec"].as_object_mut().unwrap().remove("allow");
    network["spec"]["namespaces"]["selector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": "lab"}});
    let taken_back = network.clone();
    objects.extend(first.objects);
    let again = migration(objects, None, &[]);
    assert_eq!(of_kind(&again, "ClaimNetwork"), [&taken_back]);
    assert!(refusals(&again)[0].contains("is not offered to namespace default"), "{:?}", refusals(&again));
}
