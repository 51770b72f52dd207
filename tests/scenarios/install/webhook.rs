//! The validating webhook on a real cluster, with a certificate of its own.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{self, attachment, list, text};
use netclaim_tests::{SYSTEM, Test, eventually, output};
use serde_json::{Value, json};

use crate::helm::{KEPT, and_then_as_before, uninstall};
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

/// The controller's pod that answers, and the certificate that it shows.
fn served(test: &Test<'_>) -> Result<[String; 2]> {
    let pods = ["-n", SYSTEM, "pods", "-l", "app.kubernetes.io/name=netclaim-controller"];
    let pods = test.cluster.get(&pods)?;
    let running = list(&pods["items"]).find(|pod| pod["metadata"].get("deletionTimestamp").is_none());
    let pod = running.context("no controller runs")?;
    let show = "openssl s_client -connect \"$1:9443\" </dev/null 2>/dev/null | openssl x509 -noout -serial";
    let address = text(&pod["status"]["podIP"]);
    let serial = output(Command::new("bash").args(["-o", "pipefail", "-c", show, "-", &address]))?;
    Ok([text(&pod["metadata"]["uid"]), serial])
}

pub fn the_webhook_refuses_what_netclaim_could_not_serve(test: &Test<'_>) -> Result<()> {
    and_then_as_before(test, |helm| {
        let enabled = ["--take-ownership", "--force-conflicts", "--set", "webhook.enabled=true"];
        helm.release("install", &enabled)?;
        let network = test.macvlan("a")?;
        let good = |name: &str| claim(name, &network, attachment(json!({"ifName": "data0"})));

        // While another certificate comes, nobody is refused.
        let before = served(test)?;
        let empty = ["patch", "secret", "netclaim-webhook", "--type=merge", "--patch", "{\"data\": null}"];
        test.cluster.kubectl(&[&["-n", SYSTEM], empty.as_slice()].concat())?;
        let may = |verb: &str, what: &str| {
            test.cluster.kubectl(&["auth", "can-i", verb, what, "-n", SYSTEM, "--as", CONTROLLER]).is_ok()
        };
        ensure!(may("update", "secrets/netclaim-webhook"), "the controller may not fill its Secret");
        ensure!(!may("create", "secrets"), "the controller may create Secrets");

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
        let mut unwise = test.cluster.get(&["network", &network])?;
        unwise["metadata"] = json!({"name": test.name("unwise"), "labels": unwise["metadata"]["labels"]});
        unwise["spec"]["capacity"] = json!({"bandwidth": "1G"});
        let warning = refused(test, &unwise)?;
        ensure!(warning.contains("Warning: spec.capacity.bandwidth"), "{warning}");

        let mut answers = Vec::new();
        eventually(40, "another certificate is served, by the same pod", || {
            answers.push(test.create([good(&format!("good-{}", answers.len()))]));
            let after = served(test)?;
            ensure!(after[0] == before[0] && after[1] != before[1], "{before:?}, {after:?}");
            Ok(())
        })?;
        answers.into_iter().collect::<Result<()>>().context("a claim was refused meanwhile")?;
        let mut template = objects::claim_template("template", &network);
        template["spec"]["spec"] = good("")["spec"].clone();
        test.create([good("good"), template])?;

        test.cluster.controller_away()?;
        let error = refused(test, &good("late"))?;
        ensure!(error.contains("failed calling webhook \"parameters.netclaim.dev\""), "{error}");
        // Parameters of others are not sent, nor what Kubernetes makes from templates, nor changes beside the spec.
        let foreign = json!({"opaque": {"driver": "gpu.example.com", "parameters": {"any": true}}});
        test.create([claim("foreign", &network, foreign), objects::pod_of_template("p", "template")])?;
        test.runs_with("p", &["data0"])?;
        test.delete_pod("p")?;
        test.kubectl(&["label", "resourceclaim", "good", "a=b"])?;
        test.kubectl(&["delete", "resourceclaim", "--all"])?;
        test.cluster.controller_back()?;
        eventually(20, "the webhook answers again", || test.create([good("late")]))?;

        test.kubectl(&["delete", "resourceclaim,resourceclaimtemplate", "--all"])?;
        uninstall(helm)?;
        nothing_is_left(test.cluster, &KEPT)
    })
}
