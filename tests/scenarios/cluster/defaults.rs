//! Networks that pods get without asking, and containers that wait for networks without asking: the policies
//! of the chart on a real API server, and the controller that keeps the templates.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{
    attachment, claim_template, container, list, pod, pod_of_template, request, text,
};
use netclaim_tests::{SYSTEM, Test, eventually};
use serde_json::{Value, json};

/// The label of the namespaces that have the scenario's defaults.
const SELECTED: &str = "netclaim.dev/test-default";
/// The annotation by which a pod chooses among its defaults.
const ANNOTATION: &str = "netclaim.dev/default-networks";

/// Runs a scenario with the chart's policies, and removes what it leaves.
fn with_policies(test: &Test<'_>, scenario: impl FnOnce() -> Result<()>) -> Result<()> {
    let result = test.cluster.with_default_networks(scenario);
    let left = "deploy,ds,rs,job,pods,resourceclaimtemplates";
    test.kubectl(&["delete", left, "--all", "--grace-period=1", "--timeout=60s"])?;
    result
}

/// Labels a namespace so that the scenario's defaults select it, or takes the label away.
fn select(test: &Test<'_>, namespace: &str, label: &str, is_selected: bool) -> Result<()> {
    let label = if is_selected { format!("{label}=yes") } else { format!("{label}-") };
    test.cluster.kubectl(&["label", "namespace", namespace, "--overwrite", &label]).map(drop)
}

/// Creates a ClaimNetwork that is a default of the namespaces with this label, and its class.
fn default(test: &Test<'_>, name: &str, label: &str, more: Value) -> Result<String> {
    test.network(name, |network| {
        network["spec"]["default"] = more;
        network["spec"]["default"]["namespaceSelector"] = json!({"matchLabels": {label: "yes"}});
    })
}

/// Waits until the condition `Defaulted` has this reason and these words.
fn defaulted(test: &Test<'_>, network: &str, reason: &str, words: &str) -> Result<()> {
    test.condition(90, ["claimnetwork", network], "Defaulted", |condition| {
        condition["reason"] == reason && text(&condition["message"]).contains(words)
    })
}

/// Returns an object as the API server would store it.
fn admitted(test: &Test<'_>, namespace: &str, object: &Value, more: &[&str]) -> Result<Value> {
    let create = ["-n", namespace, "create", "--dry-run=server", "-o", "json", "-f", "-"];
    let text = test.cluster.kubectl_with(&[create.as_slice(), more].concat(), &object.to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// The claims of a pod, and those that each of its containers names, in words.
fn claims(pod: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let name = |claim: &Value| match &claim["request"] {
        Value::String(request) => format!("{}/{request}", text(&claim["name"])),
        _ => text(&claim["name"]),
    };
    // The API server adds them in any order.
    let of = |value: &Value| list(value).map(name).collect::<BTreeSet<_>>();
    let containers = ["containers", "initContainers"].into_iter().flat_map(|kind| list(&pod["spec"][kind]));
    let named = containers.map(|container| (text(&container["name"]), of(&container["resources"]["claims"])));
    let own = ("pod".to_owned(), of(&pod["spec"]["resourceClaims"]));
    named.chain([own]).filter(|(_, claims)| !claims.is_empty()).collect()
}

/// Makes sure that a pod is admitted with these claims; each is of the pod or of one of its containers.
fn is_admitted_with(test: &Test<'_>, what: &str, pod: &Value, expected: &[(&str, &[&str])]) -> Result<()> {
    let found = claims(&admitted(test, test.namespace(), pod, &[]).with_context(|| what.to_owned())?);
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(of, claims)| ((*of).to_owned(), names(claims))).collect();
    ensure!(found == expected, "{what}: {found:?}, expected {expected:?}");
    Ok(())
}

/// A pod of one container, changed. It says nothing of claims: an empty list would be what whoever applies it
/// again wants to have.
fn plain(change: impl FnOnce(&mut Value)) -> Value {
    let mut plain = pod("p", &[]);
    for part in ["/spec", "/spec/containers/0/resources"] {
        if let Some(part) = plain.pointer_mut(part).and_then(Value::as_object_mut) {
            part.retain(|name, _| !name.ends_with("laims"));
        }
    }
    change(&mut plain);
    plain
}

pub fn every_kind_of_pod_gets_the_defaults_of_its_namespace(test: &Test<'_>) -> Result<()> {
    with_policies(test, || {
        select(test, test.namespace(), SELECTED, true)?;
        let [a, b] = [default(test, "a", SELECTED, json!({}))?, default(test, "b", SELECTED, json!({}))?];
        let (of_a, of_b) = (format!("default-{a}"), format!("default-{b}"));
        let both: &[&str] = &[&of_a, &of_b];
        for network in [&a, &b] {
            defaulted(test, network, "AllPods", "pods of 1 namespace have it")?;
        }
        pods_by_hand(test, [&of_a, &of_b], both)?;
        pods_that_opt_out(test, &b, &of_b)?;
        pods_of_others(test, both)?;
        pods_that_are_applied_again(test)
    })
}

fn pods_by_hand(test: &Test<'_>, [of_a, of_b]: [&str; 2], both: &[&str]) -> Result<()> {
    eventually(20, "the policy is in force", || {
        is_admitted_with(test, "a pod", &plain(|_| {}), &[("pod", both), ("shell", both)])
    })?;
    let containers = plain(|pod| {
        pod["spec"]["containers"] = json!([container("one"), container("two")]);
        let mut sidecar = container("sidecar");
        sidecar["restartPolicy"] = json!("Always");
        pod["spec"]["initContainers"] = json!([container("first"), sidecar]);
    });
    let all = [("pod", both), ("one", both), ("two", both), ("first", both), ("sidecar", both)];
    is_admitted_with(test, "all kinds of containers", &containers, &all)?;
    let of_template = |template: &str, named: Value| {
        plain(|pod| {
            pod["spec"]["resourceClaims"] = json!([{"name": of_a, "resourceClaimTemplateName": template}]);
            pod["spec"]["containers"] = json!([container("one"), container("two")]);
            pod["spec"]["containers"][0]["resources"] = json!({"claims": [named]});
        })
    };
    let ours = format!("netclaim-{of_a}");
    let one = format!("{of_a}/net");
    let with_request: &[&str] = &[&one, of_b];
    for (what, named, of_one) in [
        ("exactly our claim in one container", json!({"name": of_a}), both),
        ("one request of our claim", json!({"name": of_a, "request": "net"}), with_request),
    ] {
        let expected = [("pod", both), ("one", of_one), ("two", both)];
        is_admitted_with(test, what, &of_template(&ours, named), &expected)?;
    }
    let kept = [("pod", both), ("one", both), ("two", &[of_b][..])];
    is_admitted_with(
        test,
        "a claim of this name of another source",
        &of_template("mine", json!({"name": of_a})),
        &kept,
    )?;
    let mut other = pod_of_template("p", "other");
    other["spec"]["containers"][0]["name"] = json!("one");
    let after: &[&str] = &["other", of_a, of_b];
    is_admitted_with(test, "other claims", &other, &[("pod", after), ("one", after)])
}

fn pods_that_opt_out(test: &Test<'_>, b: &str, of_b: &str) -> Result<()> {
    let annotated = |value: &str| plain(|pod| pod["metadata"]["annotations"] = json!({ANNOTATION: value}));
    is_admitted_with(test, "no default is wanted", &annotated(""), &[])?;
    let one: &[&str] = &[of_b];
    let wanted = annotated(&format!(" {b} ,other"));
    is_admitted_with(test, "one is wanted", &wanted, &[("pod", one), ("shell", one)])?;
    let host = plain(|pod| pod["spec"]["hostNetwork"] = json!(true));
    is_admitted_with(test, "a pod in the network of its node", &host, &[])?;
    let windows = plain(|pod| {
        pod["spec"]["os"] = json!({"name": "windows"});
        pod["spec"]["containers"][0].as_object_mut().map(|container| container.remove("securityContext"));
    });
    is_admitted_with(test, "a pod of Windows", &windows, &[])?;
    for namespace in ["default", "kube-system"] {
        select(test, namespace, SELECTED, namespace == "kube-system")?;
        let found = claims(&admitted(test, namespace, &plain(|_| {}), &[])?);
        ensure!(found.is_empty(), "a pod of {namespace}: {found:?}");
        select(test, namespace, SELECTED, false)?;
    }
    // As a kubelet makes them.
    let node = test.cluster.get(&["nodes", "node0"])?;
    let uid = &node["metadata"]["uid"];
    let mirror = plain(|pod| {
        pod["metadata"]["annotations"] =
            json!({"kubernetes.io/config.mirror": "x", "kubernetes.io/config.source": "file"});
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": "node0", "uid": uid, "controller": true}]);
        pod["spec"]["nodeName"] = json!("node0");
    });
    let kubelet = [
        "--as=system:node:node0",
        "--as-group=system:nodes",
        "--as-group=system:authenticated",
        "--validate=false",
    ];
    let found = claims(&admitted(test, test.namespace(), &mirror, &kubelet).context("a mirror pod")?);
    ensure!(found.is_empty(), "a mirror pod: {found:?}");
    Ok(())
}

/// Pods that controllers of Kubernetes and kubectl make.
fn pods_of_others(test: &Test<'_>, both: &[&str]) -> Result<()> {
    let template = |restart: &str| {
        let mut spec = plain(|_| {})["spec"].take();
        spec["restartPolicy"] = json!(restart);
        json!({"metadata": {"labels": {"app": "x"}}, "spec": spec})
    };
    let selector = json!({"matchLabels": {"app": "x"}});
    let workload = |kind: &str| {
        json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": kind.to_lowercase()},
            "spec": {"selector": selector, "template": template("Always")}})
    };
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": {"template": template("Never")}});
    test.create([workload("Deployment"), workload("DaemonSet"), job])?;
    test.kubectl(&[
        "run",
        "by-hand",
        "--image=localhost/busybox:1",
        "--image-pull-policy=Never",
        "--",
        "sleep",
        "100",
    ])?;
    eventually(60, "there are pods of all kinds with both claims", || {
        let pods = test.cluster.get(&["-n", test.namespace(), "pods"])?;
        let pods: Vec<&Value> = list(&pods["items"]).collect();
        for prefix in ["deployment-", "daemonset-", "job-", "by-hand"] {
            let of_kind = |pod: &&&Value| text(&pod["metadata"]["name"]).starts_with(prefix);
            let pod = pods.iter().find(of_kind).with_context(|| format!("no pod {prefix}"))?;
            let found = claims(pod);
            let both = both.iter().map(ToString::to_string).collect();
            ensure!(found.len() == 2 && found.values().all(|claims| *claims == both), "{prefix}: {found:?}");
        }
        Ok(())
    })?;
    let debug = [
        "debug",
        "by-hand",
        "--image=localhost/busybox:1",
        "--image-pull-policy=Never",
        "-c",
        "debug",
        "--",
        "true",
    ];
    test.kubectl(&debug)?;
    let debugged = test.get("pods", "by-hand")?;
    let ephemeral = &debugged["spec"]["ephemeralContainers"][0];
    ensure!(ephemeral["name"] == "debug" && ephemeral["resources"]["claims"].is_null(), "{ephemeral}");
    Ok(())
}

fn pods_that_are_applied_again(test: &Test<'_>) -> Result<()> {
    let bare = plain(|pod| pod["metadata"]["name"] = json!("again")).to_string();
    let namespace = test.namespace();
    let run =
        |args: &[&str]| test.cluster.kubectl_with(&[&["-n", namespace], args, &["-f", "-"]].concat(), &bare);
    let of_client = run(&["create", "--dry-run=client", "-o", "json"])?;
    ensure!(!of_client.contains("default-"), "kubectl alone knows no policy: {of_client}");
    run(&["apply"])?;
    let has = || test.get("pods", "again").map(|pod| claims(&pod));
    let before = has()?;
    ensure!(!before.is_empty(), "it has no claims");
    run(&["apply"])?;
    run(&["apply", "--server-side", "--force-conflicts", "--field-manager=kubectl-client-side-apply"])?;
    ensure!(has()? == before, "applied again, the pod has {:?}, and had {before:?}", has()?);
    let refused = format!("{:#}", run(&["replace"]).err().context("a bare manifest replaces the pod")?);
    ensure!(refused.contains("pod updates may not change fields"), "{refused}");
    Ok(())
}

pub fn a_pod_waits_for_what_its_default_lacks_and_says_so(test: &Test<'_>) -> Result<()> {
    with_policies(test, || {
        let namespace = test.namespace();
        let a = test.macvlan("a")?;
        let template = format!("netclaim-default-{a}");
        test.create([plain(|pod| pod["metadata"]["name"] = json!("before"))])?;
        test.runs("before")?;
        // A template of this name that is a tenant's.
        test.create([claim_template(&template, &a)])?;
        select(test, namespace, SELECTED, true)?;
        let spec = json!({"spec": {"default": {"namespaceSelector": {"matchLabels": {SELECTED: "yes"}}}}})
            .to_string();
        test.cluster.kubectl(&["patch", "claimnetwork", &a, "--type=merge", "-p", &spec])?;
        defaulted(test, &a, "NoTemplate", &format!("{namespace}: somebody else has made"))?;
        test.kubectl(&["delete", "resourceclaimtemplate", &template])?;
        defaulted(test, &a, "OlderPods", "older than the default and without it: 1 pod in 1 of 1 namespace")?;
        test.delete_pod("before")?;
        defaulted(test, &a, "AllPods", "pods of 1 namespace have it")?;

        // A pod without any claim has the network.
        test.create([plain(|_| {})])?;
        test.runs_with("p", &["net1"])?;
        test.delete_pod("p")?;

        // Another default is another template.
        let uid = || {
            Ok::<_, anyhow::Error>(test.get("resourceclaimtemplates", &template)?["metadata"]["uid"].clone())
        };
        let before = uid()?;
        let named = json!({"spec": {"default": {"attachment": {"interfaceName": "storage0"}}}}).to_string();
        test.cluster.kubectl(&["patch", "claimnetwork", &a, "--type=merge", "-p", &named])?;
        eventually(20, "there is another template", || {
            ensure!(uid()? != before, "it is the same");
            Ok(())
        })?;
        test.create([plain(|_| {})])?;
        test.runs_with("p", &["storage0"])?;

        // It stays as long as a pod names it.
        select(test, namespace, SELECTED, false)?;
        defaulted(test, &a, "NoNamespace", "no namespace has the labels")?;
        ensure!(uid().is_ok(), "the template is gone, and the pod is not");
        test.delete_pod("p")?;
        eventually(90, "the template goes after the last pod", || {
            ensure!(uid().is_err(), "it is there");
            Ok(())
        })?;

        // A quota refuses the claim.
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-claims"},
            "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "0"}}});
        test.create([quota])?;
        select(test, namespace, SELECTED, true)?;
        defaulted(test, &a, "AllPods", "")?;
        test.create([plain(|_| {})])?;
        test.event("p", &["FailedResourceClaimCreation", "exceeded quota"])?;
        let explained =
            test.netclaimctl(&["explain", "pod", "p", "--namespace", namespace, "--output=json"])?;
        let note =
            format!("ClaimNetwork {a} is a default of this namespace; the annotation {ANNOTATION}: \"\"");
        ensure!(explained["notes"].to_string().replace('\\', "").contains(&note), "{explained}");
        test.kubectl(&["delete", "resourcequota", "no-claims"])?;
        test.runs_with("p", &["storage0"])?;
        test.delete_pod("p")?;

        // No node can serve it.
        let nowhere =
            json!({"spec": {"nodeSelector": {"matchLabels": {"netclaim.dev/test-nowhere": "yes"}}}})
                .to_string();
        test.cluster.kubectl(&["patch", "claimnetwork", &a, "--type=merge", "-p", &nowhere])?;
        test.is_not_published(&format!("net-{a}"))?;
        test.create([plain(|_| {})])?;
        test.event("p", &["NetworkNotAllocated", &note])?;
        // The way out.
        test.delete_pod("p")?;
        test.create([plain(|pod| pod["metadata"]["annotations"] = json!({ANNOTATION: ""}))])?;
        test.runs("p")?;
        test.delete_pod("p")?;

        // The ClaimNetwork goes: new pods are as they were before.
        test.cluster.kubectl(&["delete", "claimnetwork", &a])?;
        eventually(20, "pods get it no more", || is_admitted_with(test, "a pod", &plain(|_| {}), &[]))?;
        eventually(90, "its template goes", || {
            ensure!(uid().is_err(), "it is there");
            Ok(())
        })
    })
}

pub fn every_container_waits_for_the_networks_of_its_pod_where_the_namespace_says_so(
    test: &Test<'_>,
) -> Result<()> {
    with_policies(test, || {
        let a = test.macvlan("a")?;
        let mut labelled = claim_template("labelled", &a);
        labelled["metadata"]["labels"] = json!({"netclaim.dev/gate": "all"});
        let mut with_settings = claim_template("settings", &a);
        with_settings["spec"]["spec"]["devices"]["config"] =
            json!([attachment(json!({"interfaceName": "data0"}))]);
        test.create([labelled, with_settings, claim_template("unknown", &a)])?;
        let of = |template: &str| {
            let mut pod = pod_of_template("p", template);
            let second = container("second");
            if let Some(containers) = pod["spec"]["containers"].as_array_mut() {
                containers.push(second);
            }
            let mut sidecar = container("first");
            sidecar["restartPolicy"] = json!("Always");
            pod["spec"]["initContainers"] = json!([sidecar]);
            pod
        };
        let some = |template: &'static str| [("pod", vec![template]), ("shell", vec![template])];
        let all = |template: &'static str| {
            ["pod", "shell", "second", "first"].map(|of| (of, vec![template])).to_vec()
        };
        let has = |template: &'static str, expected: Vec<(&str, Vec<&str>)>| {
            let expected: Vec<(&str, &[&str])> =
                expected.iter().map(|(of, claims)| (*of, claims.as_slice())).collect();
            is_admitted_with(test, template, &of(template), &expected)
        };
        for template in ["labelled", "settings", "unknown"] {
            has(template, some(template).to_vec())?;
        }
        test.cluster.kubectl(&["label", "namespace", test.namespace(), "netclaim.dev/gate=all"])?;
        eventually(20, "the policy is in force", || has("labelled", all("labelled")))?;
        has("settings", all("settings"))?;
        has("unknown", some("unknown").to_vec())?;
        test.create([of("settings")])?;
        test.runs_with("p", &["data0"])?;
        test.delete_pod("p")
    })
}

pub fn the_controller_writes_only_templates_of_defaults(test: &Test<'_>) -> Result<()> {
    with_policies(test, || {
        let namespace = test.namespace();
        let account = format!("system:serviceaccount:{SYSTEM}:netclaim-controller");
        let good = || {
            let mut template = claim_template("netclaim-default-a", "a");
            template["metadata"]["labels"] = json!({"netclaim.dev/default-network": "a"});
            template
        };
        let create = |template: &Value| admitted(test, namespace, template, &["--as", &account]);
        eventually(20, "the right is in force", || create(&good()))?;
        let name = "may only create and delete ResourceClaimTemplates netclaim-default-NETWORK";
        let one = "with one request for one device, and with parameters of the driver netclaim.dev";
        let mut foreign = attachment(json!({}));
        foreign["opaque"]["driver"] = json!("gpu.example.com");
        let cases: [(&str, Value, &str); 7] = [
            ("/metadata/name", json!("mine"), name),
            ("/metadata/labels", json!({}), name),
            ("/metadata/labels", json!({"netclaim.dev/default-network": "b"}), name),
            ("/spec/spec/devices/requests", json!([request("one", "a"), request("two", "a")]), one),
            ("/spec/spec/devices/requests/0/exactly", json!({"deviceClassName": "a", "count": 2}), one),
            (
                "/spec/spec/devices",
                json!({"requests": [{"name": "net", "exactly": {"deviceClassName": "a"}}], "config": [foreign]}),
                one,
            ),
            (
                "/spec",
                json!({"metadata": {"labels": {"a": "b"}}, "spec": good()["spec"]["spec"]}),
                "the metadata of claims",
            ),
        ];
        for (path, value, words) in cases {
            let mut bad = good();
            *bad.pointer_mut(path).with_context(|| path.to_owned())? = value;
            let refused = create(&bad).err().with_context(|| format!("it is accepted: {bad}"))?;
            ensure!(format!("{refused:#}").contains(words), "{bad}: {refused:#}");
        }
        test.create([claim_template("mine", "a"), good()])?;
        let delete = |name: &str| {
            test.kubectl(&["delete", "resourceclaimtemplate", name, "--dry-run=server", "--as", &account])
        };
        let refused = delete("mine").err().context("a tenant's template can be deleted")?;
        ensure!(format!("{refused:#}").contains(name), "{refused:#}");
        delete("netclaim-default-a").map(drop)
    })
}
