//! `netclaimctl migrate` on a real cluster, which knows Multus' objects and has no Multus.

use anyhow::{Result, ensure};
use netclaim_api::reasons::{ImportEvent, Reason as _};
use netclaim_tests::objects::{deployment_of_multus, foreign_definition, list, text};
use netclaim_tests::{SYSTEM, Test, eventually};
use serde_json::{Value, json};

/// What an admin applies beside netclaim to have definitions translated continuously.
const IMPORTER: &str = "deploy/importer";
const NADS: &str = "network-attachment-definitions";

/// The definition of NetworkAttachmentDefinitions.
fn definition() -> Value {
    foreign_definition(
        "k8s.cni.cncf.io",
        "v1",
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
    )
}

pub fn a_deployment_of_multus_gets_its_network_from_netclaim(test: &Test<'_>) -> Result<()> {
    with_definition(test, moved)
}

pub fn definitions_of_multus_become_networks_without_a_command(test: &Test<'_>) -> Result<()> {
    with_definition(test, |test| {
        test.cluster.kustomization("apply", IMPORTER)?;
        let imported = imported(test);
        if imported.is_err() {
            eprintln!("{}", test.cluster.kubectl(&["-n", SYSTEM, "logs", "deployment/netclaim-importer"])?);
        }
        test.cluster.kustomization_gone(IMPORTER)?;
        let gone = ["--ignore-not-found", "--timeout=60s"];
        let nad = ["-n", "default", "delete", NADS, &test.name("lan"), &test.name("sriov")];
        test.cluster.kubectl(&[&nad[..], &gone].concat())?;
        let made = ["delete", "networks.netclaim.dev,deviceclasses", &network_of_default(test)];
        test.cluster.kubectl(&[&made[..], &gone].concat())?;
        imported
    })
}

/// Calls `scenario` while the cluster knows NetworkAttachmentDefinitions.
fn with_definition(test: &Test<'_>, scenario: impl Fn(&Test<'_>) -> Result<()>) -> Result<()> {
    test.create([definition()])?;
    test.cluster.kubectl(&["wait", "crd", "--all", "--for=condition=Established", "--timeout=30s"])?;
    let result = scenario(test);
    // Their pods would come back.
    test.kubectl(&["delete", "deployment", "--all", "--timeout=60s"])?;
    let name = definition()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    test.cluster.kubectl(&["delete", "crd", &name, "--timeout=60s"])?;
    result
}

/// The Network of a definition in the namespace `default`, from which the importer takes them as it is shipped.
fn network_of_default(test: &Test<'_>) -> String {
    format!("default-{}", test.name("lan"))
}

fn imported(test: &Test<'_>) -> Result<()> {
    test.cluster.kubectl(&[
        "-n",
        SYSTEM,
        "rollout",
        "status",
        "deployment/netclaim-importer",
        "--timeout=60s",
    ])?;
    let (name, network) = (test.name("lan"), network_of_default(test));
    let on = |link: &str| json!({"cniVersion": "1.0.0", "type": "macvlan", "master": link, "ipam": {"type": "static"}});
    create_definition(test, &name, &on("eth1"))?;
    test.create([deployment_of_multus("web", &format!("default/{name}"))])?;

    let is_accepted = |condition: &Value| condition["status"] == "True";
    test.condition(60, ["networks.netclaim.dev", &network], "Accepted", is_accepted)?;
    let template = eventually(60, "the Deployment has a template", || {
        test.get("resourceclaimtemplate", "deployment-web")
    })?;
    let request = &template["spec"]["spec"]["devices"]["requests"][0];
    ensure!(request["exactly"]["deviceClassName"] == network.as_str(), "{template}");
    let deployment = test.get("deployment", "web")?;
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations.get("k8s.v1.cni.cncf.io/networks").is_some(), "workloads stay: {annotations}");

    let patch = json!({"spec": {"config": on("eth2").to_string()}}).to_string();
    test.cluster.kubectl(&["-n", "default", "patch", NADS, &name, "--type", "merge", "--patch", &patch])?;
    eventually(60, "the Network follows its definition", || {
        let network = test.cluster.get(&["networks.netclaim.dev", &network])?;
        ensure!(network["spec"]["uplink"]["interfaces"] == json!(["eth2"]), "{network}");
        Ok(())
    })?;
    test.condition(60, ["networks.netclaim.dev", &network], "Accepted", is_accepted)?;
    refused_definition_gets_an_event(test)?;
    has_no_more_rights(test)
}

/// Creates a definition in the namespace `default`.
fn create_definition(test: &Test<'_>, name: &str, config: &Value) -> Result<()> {
    let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"config": config.to_string()}});
    test.cluster.kubectl_with(&["create", "-f", "-"], &nad.to_string()).map(drop)
}

fn refused_definition_gets_an_event(test: &Test<'_>) -> Result<()> {
    let name = test.name("sriov");
    create_definition(test, &name, &json!({"cniVersion": "1.0.0", "type": "sriov"}))?;
    eventually(60, "the definition has an event", || {
        let events = test.cluster.get(&["-n", "default", "events.v1.events.k8s.io"])?;
        let of_definition =
            list(&events["items"]).filter(|event| event["regarding"]["name"] == name.as_str());
        let events: Vec<&Value> = of_definition.collect();
        let is_expected = |event: &&Value| {
            event["reason"] == ImportEvent::NotTranslated.as_str()
                && text(&event["note"]).starts_with("spec.config.type: ")
        };
        ensure!(events.iter().any(is_expected), "it has {events:#?}");
        Ok(())
    })
}

fn has_no_more_rights(test: &Test<'_>) -> Result<()> {
    let account = format!("system:serviceaccount:{SYSTEM}:netclaim-importer");
    let may = |verb: &str, what: &str| test.cluster.may(&account, &[verb, what, "--all-namespaces"]);
    for (verb, what) in [
        ("patch", "networks.netclaim.dev"),
        ("patch", "resourceclaimtemplates"),
        ("list", "deployments"),
        ("create", "events.events.k8s.io"),
    ] {
        ensure!(may(verb, what), "the importer may not {verb} {what}");
    }
    for (verb, what) in [
        ("delete", "networks.netclaim.dev"),
        ("delete", "resourceclaimtemplates"),
        ("patch", "uplinkpolicies.netclaim.dev"),
        ("patch", "deployments"),
        ("patch", NADS),
        ("list", "pods"),
        ("create", "pods"),
        ("get", "secrets"),
        ("patch", "events.events.k8s.io"),
        ("create", "resourceclaims"),
    ] {
        ensure!(!may(verb, what), "the importer may {verb} {what}");
    }
    Ok(())
}

fn moved(test: &Test<'_>) -> Result<()> {
    let address = test.address(1, 9);
    let config = json!({"cniVersion": "0.3.1", "name": test.name("lan"), "type": "macvlan", "master": "eth1",
        "ipam": {"type": "static"}});
    let networks = json!([{"name": "lan", "interface": "data0", "ips": [format!("{address}/24")], "mac": "02:00:5e:10:00:01"}]);
    test.create([
        json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "lan"},
            "spec": {"config": config.to_string()}}),
        deployment_of_multus("web", &networks.to_string()),
    ])?;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"])?;

    let migration = test.migrate(&[])?;
    test.create(list(&migration["objects"]).cloned())?;
    test.move_deployment(&migration, "web")?;
    test.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    eventually(30, "the pod of the Deployment has the interface", || {
        let addresses = test.kubectl(&["exec", "deployment/web", "--", "ip", "addr", "show", "data0"])?;
        ensure!(addresses.contains(&format!("{address}/24")), "{addresses}");
        ensure!(addresses.contains("02:00:5e:10:00:01"), "{addresses}");
        Ok(())
    })?;
    let deployment = test.get("deployment", "web")?;
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    ensure!(annotations.get("k8s.v1.cni.cncf.io/networks").is_none(), "{annotations}");
    let again = test.migrate(&[])?;
    ensure!(list(&again["workloads"]).next().is_none(), "nothing is left to move: {again}");
    Ok(())
}
