//! The validating webhook on a real cluster, with a certificate of its own and with one of cert-manager.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netclaim_tests::objects::{self, attachment, list, text};
use netclaim_tests::{SYSTEM, Test, eventually, long, output};
use serde_json::{Value, json};

use crate::cert_manager::{CertManager, ISSUER};
use crate::helm::{KEPT, and_then_as_before, timed, uninstall};
use crate::left::nothing_is_left;

const CONTROLLER: &str = "system:serviceaccount:netclaim-system:netclaim-controller";

/// A claim for a device of `class`, with parameters.
fn claim(name: &str, class: &str, config: Value) -> Value {
    let mut claim = objects::claim(name, class);
    claim["spec"]["devices"]["config"] = json!([config]);
    claim
}

/// What the API server says when it refuses to create the object.
fn refused(test: &Test<'_>, object: &Value) -> Result<String> {
    let args = ["-n", test.namespace(), "create", "--warnings-as-errors", "-f", "-"];
    let refused = test.cluster.kubectl_with(&args, &object.to_string()).err();
    refused.map(|error| format!("{error:#}")).with_context(|| format!("it is accepted: {object}"))
}

/// Whether the controller has a right in its namespace.
fn may(test: &Test<'_>, verb: &str, what: &str) -> bool {
    test.cluster.may(CONTROLLER, &[verb, what, "-n", SYSTEM])
}

/// Makes sure that the controller changes nothing of its webhooks but the CAs by which API servers know them.
fn controller_changes_only_cas(test: &Test<'_>) -> Result<()> {
    let patch = |operation: &Value| {
        let patch = json!([operation]).to_string();
        let what =
            ["patch", "validatingwebhookconfiguration", "netclaim-webhook", "--type=json", "-p", &patch];
        test.cluster.kubectl(&[what.as_slice(), &["--dry-run=server", "--as", CONTROLLER]].concat())
    };
    let replace = |path: &str, value: Value| json!({"op": "replace", "path": format!("/webhooks/0/{path}"), "value": value});
    let webhook = "may only change clientConfig.caBundle and clientConfig.service.path of webhooks";
    for (change, words) in [
        (replace("failurePolicy", json!("Ignore")), webhook),
        (replace("clientConfig", json!({"url": "https://192.0.2.1/review"})), webhook),
        (replace("clientConfig/service/name", json!("other")), webhook),
        (replace("clientConfig/service/namespace", json!("other")), webhook),
        (replace("clientConfig/service/port", json!(444)), webhook),
        (replace("clientConfig/service/path", json!("/review")), webhook),
        (replace("rules/0/operations", json!(["CREATE"])), webhook),
        (replace("matchConditions/0/expression", json!("false")), webhook),
        (json!({"op": "remove", "path": "/webhooks/0"}), webhook),
        (json!({"op": "add", "path": "/metadata/labels/a", "value": "b"}), "may not change the metadata"),
    ] {
        eventually(10, "the policy is in force", || {
            let refused = patch(&change).err().with_context(|| format!("it is accepted: {change}"))?;
            let refused = format!("{refused:#}");
            ensure!(refused.contains(words), "{change}: {refused}");
            Ok(())
        })?;
    }
    patch(&json!({"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "Cg=="})).map(drop)
}

/// The controllers' pods that are not about to end.
fn running(test: &Test<'_>) -> Result<Vec<Value>> {
    let pods = ["-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=netclaim-controller"];
    let pods = test.cluster.get(&pods)?;
    let running = list(&pods["items"]).filter(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    Ok(running.cloned().collect())
}

/// The controller's pod that answers, and the certificate that it shows.
fn served(test: &Test<'_>) -> Result<[String; 2]> {
    let pod = running(test)?.into_iter().next().context("no controller runs")?;
    let show = "openssl s_client -connect \"$1:9443\" </dev/null 2>/dev/null | openssl x509 -noout -serial";
    let address = text(&pod["status"]["podIP"]);
    let serial = output(Command::new("bash").args(["-o", "pipefail", "-c", show, "-", &address]))?;
    Ok([text(&pod["metadata"]["uid"]), serial])
}

/// The path at which API servers ask, which all of our webhooks have.
fn path(test: &Test<'_>) -> Result<String> {
    let configuration = test.cluster.get(&["validatingwebhookconfiguration", "netclaim-webhook"])?;
    let paths =
        list(&configuration["webhooks"]).map(|webhook| text(&webhook["clientConfig"]["service"]["path"]));
    let paths: Vec<String> = paths.collect();
    let [one, other] = paths.as_slice() else { bail!("{paths:?}") };
    let random = one.strip_prefix("/review/").context("the path can be guessed")?;
    ensure!(one == other && random.len() == 64, "{paths:?}");
    Ok(one.clone())
}

/// The status with which the webhook answers to a client that posts to a path.
fn status_at(test: &Test<'_>, path: &str) -> Result<String> {
    let pod = running(test)?.into_iter().next().context("no controller runs")?;
    let post =
        "printf 'POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}' \"$2\" |
        openssl s_client -quiet -connect \"$1:9443\" 2>/dev/null | head -n 1 | cut -d ' ' -f 2";
    output(Command::new("bash").args(["-c", post, "-", &text(&pod["status"]["podIP"]), path]))
}

/// A mistake in each other kind that the webhook looks at and that the definitions let through, and what is
/// said of it.
fn bad_objects(test: &Test<'_>, network: &str) -> [(Value, &'static str); 5] {
    let parameters = || attachment(json!({"mac": "02:00:5e:10:00"}));
    let mut template = objects::claim_template("template", network);
    template["spec"]["spec"]["devices"]["config"] = json!([parameters()]);
    let object = |kind: &str, spec| {
        json!({
            "apiVersion": "netclaim.dev/v1alpha1", "kind": kind, "metadata": {"name": test.name("bad")}, "spec": spec,
        })
    };
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": test.name("bad")},
        "spec": {"config": [parameters()]},
    });
    let network =
        object("ClaimNetwork", json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "../macvlan"}]}}));
    let rack = json!({"matchLabels": {"rack": "no label"}});
    let policy = object("UplinkPolicy", json!({"links": {"names": ["eth1"]}, "nodeSelector": rack}));
    let pool = object("AddressPool", json!({"ranges": [{"subnet": "10.60.0.1/20"}]}));
    [
        (template, "spec.spec.devices.config[0].opaque.parameters.mac: "),
        (class, "spec.config[0].opaque.parameters.mac: "),
        (network, "spec.cni.plugins[0].type: "),
        (policy, "spec.nodeSelector.matchLabels: rack=no label cannot be a label"),
        (pool, "spec.ranges[0].subnet: 10.60.0.1/20 has host bits set"),
    ]
}

pub fn the_webhook_refuses_what_netclaim_could_not_serve(test: &Test<'_>) -> Result<()> {
    and_then_as_before(test, |helm| {
        let enabled = ["--take-ownership", "--force-conflicts", "--set", "webhook.enabled=true"];
        helm.release("install", &enabled)?;
        let network = test.macvlan("a")?;
        let good = |name: &str| claim(name, &network, attachment(json!({"interfaceName": "data0"})));

        // While another certificate comes, no request is refused.
        let before = served(test)?;
        let empty = ["patch", "secret", "netclaim-webhook", "--type=merge", "--patch", "{\"data\": null}"];
        test.cluster.kubectl(&[&["-n", SYSTEM], empty.as_slice()].concat())?;
        ensure!(may(test, "update", "secrets/netclaim-webhook"), "the controller may not fill its Secret");
        ensure!(!may(test, "create", "secrets"), "the controller may create Secrets");
        controller_changes_only_cas(test)?;
        let secret = eventually(20, "the webhooks have a path", || path(test))?;
        for (path, status) in [("/review", "404"), ("/", "404"), (&secret, "400")] {
            let found = status_at(test, path)?;
            ensure!(found.trim() == status, "{path}: {found}");
        }

        let wrong = attachment(json!({"mac": "02:00:5e:10:00", "ips": ["10.0.0.300"]}));
        let wrong = claim("wrong", &network, wrong);
        let error = refused(test, &wrong)?;
        for expected in [
            "The ResourceClaim \"wrong\" is invalid",
            "spec.devices.config[0].opaque.parameters.mac: \"02:00:5e:10:00\" is not a MAC address",
            "spec.devices.config[0].opaque.parameters.ips[0]: \"10.0.0.300\" is not an IP address",
        ] {
            ensure!(error.contains(expected), "no {expected:?} in {error}");
        }
        for (bad, expected) in bad_objects(test, &network) {
            let error = refused(test, &bad)?;
            ensure!(error.contains(expected), "no {expected:?} in {error}");
        }
        let mut class = test.cluster.get(&["deviceclass", &network])?;
        class["spec"]["config"] = json!([attachment(json!({"mac": "02:00:5e:10:00"}))]);
        let replaced = test.cluster.kubectl_with(&["replace", "-f", "-"], &class.to_string()).err();
        let error = replaced.map(|error| format!("{error:#}")).context("a class may be made wrong")?;
        ensure!(error.contains("spec.config[0].opaque.parameters.mac: "), "{error}");

        let mut unwise = test.cluster.get(&["claimnetwork", &network])?;
        unwise["metadata"] = json!({"name": test.name("unwise"), "labels": unwise["metadata"]["labels"]});
        unwise["spec"]["capacity"] = json!({"bandwidth": "1G"});
        let warning = refused(test, &unwise)?;
        ensure!(warning.contains("Warning: spec.capacity.bandwidth"), "{warning}");

        another_is_served(test, 40, &before, |name| test.create([good(name)]))?;
        let mut template = objects::claim_template("template", &network);
        template["spec"]["spec"] = good("")["spec"].clone();
        test.create([good("good"), template])?;

        test.cluster.controller_away()?;
        let error = refused(test, &good("late"))?;
        ensure!(error.contains("failed calling webhook \"parameters.netclaim.dev\""), "{error}");
        // Parameters of others are not sent, nor what Kubernetes makes from templates, nor changes beside the
        // spec.
        let foreign = json!({"opaque": {"driver": "gpu.example.com", "parameters": {"any": true}}});
        test.create([claim("foreign", &network, foreign), objects::pod_of_template("p", "template")])?;
        test.runs_with("p", &["data0"])?;
        test.delete_pod("p")?;
        test.kubectl(&["label", "resourceclaim", "good", "a=b"])?;
        test.kubectl(&["delete", "resourceclaim", "--all"])?;
        test.cluster.controller_back()?;
        eventually(20, "the webhook answers again", || test.create([good("late")]))?;
        ensure!(path(test)? == secret, "a restart has changed the path");

        test.kubectl(&["delete", "resourceclaim,resourceclaimtemplate", "--all"])?;
        uninstall(helm)?;
        nothing_is_left(test.cluster, &KEPT)
    })
}

/// Waits until another certificate is served than `before`, by the same pod. Claims, as `create` makes them
/// by name, are accepted all the time.
fn another_is_served(
    test: &Test<'_>,
    seconds: u64,
    before: &[String; 2],
    create: impl Fn(&str) -> Result<()>,
) -> Result<()> {
    let mut answers = Vec::new();
    eventually(seconds, "another certificate is served, by the same pod", || {
        answers.push(create(&format!("good-{}", answers.len())));
        let after = served(test)?;
        ensure!(after[0] == before[0] && after[1] != before[1], "{before:?}, {after:?}");
        Ok(())
    })?;
    answers.into_iter().collect::<Result<()>>().context("a claim was refused meanwhile")
}

pub fn the_webhook_has_a_certificate_of_cert_manager(test: &Test<'_>) -> Result<()> {
    and_then_as_before(test, |helm| {
        let cert_manager = CertManager::start(test)?;
        let values = format!(
            "webhook.enabled=true,webhook.certManager.enabled=true,webhook.certManager.issuerRef.name={ISSUER}"
        );
        timed("installed", || {
            helm.release("install", &["--take-ownership", "--force-conflicts", "--set", &values])
        })?;
        ensure!(!may(test, "get", "secrets/netclaim-webhook-tls"), "the controller may read the Secret");
        let network = test.macvlan("a")?;
        let good = |name: &str| claim(name, &network, attachment(json!({"interfaceName": "data0"})));
        eventually(20, "the API server knows the certificate", || test.create([good("first")]))?;
        path(test)?;
        let wrong = claim("wrong", &network, attachment(json!({"mac": "02:00:5e:10:00"})));
        let error = refused(test, &wrong)?;
        ensure!(error.contains("is not a MAC address"), "{error}");

        // The kubelet brings files of Secrets up to date once in a minute or so, or when the pod changes.
        // No request is refused meanwhile.
        let before = served(test)?;
        cert_manager.renew("netclaim-webhook")?;
        timed("renewed", || {
            another_is_served(test, 90, &before, |name| {
                test.cluster.wake("controller")?;
                test.create([good(name)])
            })
        })?;

        test.kubectl(&["delete", "resourceclaim", "--all"])?;
        uninstall(helm)?;
        cert_manager.remove("netclaim-webhook-tls")?;
        nothing_is_left(test.cluster, &KEPT)
    })
}

pub fn claims_can_be_written_while_controllers_come_and_go(test: &Test<'_>) -> Result<()> {
    if !long() {
        return test.skip("it takes minutes: make test-faults");
    }
    and_then_as_before(test, |helm| {
        let values = "webhook.enabled=true,controller.replicas=2,controller.podDisruptionBudget.enabled=true,\
                      controller.networkPolicy.enabled=true";
        helm.release("install", &["--take-ownership", "--force-conflicts", "--set", values])?;
        let network = test.macvlan("a")?;
        let good = |name: &str| claim(name, &network, attachment(json!({"interfaceName": "data0"})));
        eventually(20, "the API server knows the certificate", || test.create([good("first")]))?;

        let stop = AtomicBool::new(false);
        let written = thread::scope(|scope| {
            let writer = scope.spawn(|| -> Result<usize> {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    test.create([good(&format!("good-{count}"))])
                        .with_context(|| format!("claim {count}"))?;
                    count += 1;
                }
                Ok(count)
            });
            let done = leader_goes(test).and_then(|()| all_go(test));
            stop.store(true, Ordering::Relaxed);
            let written = writer.join().map_err(|_| anyhow!("the thread that writes claims panicked"))?;
            done.and(written)
        })?;
        // How many depends on how long kubectl takes beside the other lanes.
        ensure!(written > 5, "only {written} claims were written meanwhile");
        test.kubectl(&["delete", "resourceclaim", "--all"])?;
        Ok(())
    })
}

/// Evicts the controller that leads, as a drain does, and checks that the budget keeps the other one
/// meanwhile.
fn leader_goes(test: &Test<'_>) -> Result<()> {
    let [leader, other] = eventually(40, "one of two controllers leads", || {
        let leader = test.cluster.leader()?;
        let running = running(test)?;
        let names: Vec<String> = running.iter().map(|pod| text(&pod["metadata"]["name"])).collect();
        ensure!(names.len() == 2 && names.contains(&leader), "{leader:?} leads, and {names:?} run");
        let other = names.into_iter().find(|name| *name != leader).context("there is no other")?;
        Ok([leader, other])
    })?;
    let evict = |pod: &str| {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": SYSTEM},
        });
        let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}/eviction");
        test.cluster.kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction.to_string())
    };
    evict(&leader)?;
    let refused = evict(&other).err().context("both were evicted")?;
    ensure!(format!("{refused:#}").contains("disruption budget"), "{refused:#}");
    eventually(60, "the other one leads", || {
        ensure!(test.cluster.leader()? != leader, "{leader} still does");
        Ok(())
    })
}

/// Restarts all controllers, one after the other.
fn all_go(test: &Test<'_>) -> Result<()> {
    test.cluster.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment/netclaim-controller"])?;
    let status = ["-n", SYSTEM, "rollout", "status", "deployment/netclaim-controller", "--timeout=120s"];
    test.cluster.kubectl(&status).map(drop)
}
