//! From a fake API server to the files of an archive.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use clap::Parser as _;
use serde_json::{Value, json};

use super::fixtures::unpacked;
use super::*;
use crate::mock::{HANGS, api_server, items, status};
use crate::{Cli, Command};

const TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl";

fn args(line: &[&str]) -> Args {
    let line = ["netclaimctl", "bugreport"].iter().chain(line);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Bugreport(args) => args,
        other => panic!("{other:?}"),
    }
}

fn now() -> Timestamp {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

async fn made(client: Client) -> Result<(BTreeMap<String, String>, Vec<String>), Failure> {
    let (archive, missing) =
        report([client.clone(), client], &args(&[]), now(), Vec::new(), Path::new("-")).await?;
    Ok((unpacked(&archive), missing))
}

fn version() -> (u16, Value) {
    let fields =
        ["major", "minor", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
    let mut version: Value = fields.into_iter().map(|field| (field.to_owned(), json!("1"))).collect();
    version["gitVersion"] = json!("v1.37.1");
    (200, version)
}

fn container(restarts: i64) -> Value {
    json!({"name": "agent", "image": "localhost/netclaim-agent:dev", "imageID": "sha256:1", "ready": true, "restartCount": restarts})
}

fn own_pod(name: &str, component: &str, restarts: i64) -> Value {
    json!({"metadata": {"namespace": "netclaim-system", "name": name, "labels": {"app.kubernetes.io/name": component}},
        "spec": {"containers": [{"name": "agent", "image": "localhost/netclaim-agent:dev", "env": [{"name": "A", "value": "hunter2"}]}]},
        "status": {"containerStatuses": [container(restarts)]}})
}

fn event(kind: &str, name: &str, time: &str, message: &str) -> Value {
    json!({"metadata": {"namespace": "shop", "name": format!("{name}.{time}"), "creationTimestamp": time}, "type": "Warning",
        "reason": "Failed", "message": message, "involvedObject": {"kind": kind, "namespace": "shop", "name": name}})
}

/// A cluster with one ClaimNetwork, one claim of it and one of a GPU, and secrets in most places.
fn answer(uri: &str) -> (u16, Value) {
    let opaque = |driver: &str| json!({"opaque": {"driver": driver, "parameters": {"kind": "X", "licence": "hunter2"}}});
    let claim = |name: &str, class: &str| {
        json!({"metadata": {"namespace": "shop", "name": name, "managedFields": [{"manager": "hunter2"}]},
            "spec": {"devices": {"requests": [{"name": "net", "exactly": {"deviceClassName": class}}], "config": [opaque("gpu.example.com")]}}})
    };
    let pod = |name: &str| {
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"resourceClaims": [{"name": "net", "resourceClaimName": name}],
            "containers": [{"name": "app", "env": [{"name": "TOKEN", "value": "hunter2"}]}]}})
    };
    let class = |name: &str, driver: &str| {
        let expression = format!("device.driver == {driver:?}");
        json!({"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    };
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    match path {
        "/version" => version(),
        "/apis/netclaim.dev/v1alpha1/claimnetworks" => {
            items([json!({"metadata": {"name": "storage", "generation": 1},
            "spec": {"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "vpn", "master": "eth1", "psk": "hunter2"}]}}})])
        }
        "/apis/resource.k8s.io/v1/deviceclasses" => {
            items([class("storage", "netclaim.dev"), class("gpu", "gpu.example.com")])
        }
        "/apis/resource.k8s.io/v1/resourceclaims" => items([claim("web", "storage"), claim("gpu", "gpu")]),
        "/api/v1/nodes" => status(403, "Forbidden"),
        "/api/v1/pods" => items([pod("web"), pod("gpu")]),
        "/api/v1/events" => items([
            event("Pod", "web", "2026-11-22T11:59:00Z", &format!("plugin says: Bearer {TOKEN}")),
            event("Pod", "web", "2026-11-22T10:59:00Z", "too old"),
            event("Pod", "gpu", "2026-11-22T11:59:00Z", "of another owner"),
        ]),
        "/api/v1/namespaces/netclaim-system/pods" => items([
            own_pod("netclaim-agent-a", "netclaim-agent", 1),
            own_pod("netclaim-controller-b", "netclaim-controller", 0),
        ]),
        "/api/v1/namespaces/netclaim-system/pods/netclaim-agent-a/log" if query.contains("previous=true") => {
            (200, json!("panicked: password=hunter2\n"))
        }
        _ if path.ends_with("/log") => {
            let counts_from_the_oldest_line = query.contains("limitBytes=");
            assert!(query.contains("sinceSeconds=3600") && !counts_from_the_oldest_line, "{query}");
            (200, json!(format!("attached with {TOKEN}\n")))
        }
        _ if path.contains("secrets") || path.contains("configmaps") => panic!("{path}"),
        _ if path.contains("validatingwebhook") => status(404, "NotFound"),
        _ => items([]),
    }
}

#[tokio::test]
async fn the_report_has_what_is_netclaims_and_no_secret() {
    let (files, missing) = made(api_server(answer)).await.unwrap();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    for name in
        ["README.md", "versions.txt", "events.txt", "objects/resourceslices.yaml", "objects/pods.yaml"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    for (name, text) in &files {
        assert!(!text.contains("hunter2") && !text.contains(TOKEN), "{name}: {text}");
    }
    assert_eq!(
        files["versions.txt"],
        format!(
            "netclaimctl {}\nKubernetes v1.37.1\n2 x localhost/netclaim-agent:dev (sha256:1)\n",
            env!("CARGO_PKG_VERSION")
        )
    );
    let network = &files["objects/claimnetworks.yaml"];
    assert!(
        network.starts_with("---\n")
            && network.contains("kind: ClaimNetwork")
            && network.contains("master: eth1"),
        "{network}"
    );
    let claims = &files["objects/resourceclaims.yaml"];
    assert!(claims.contains("name: web") && !claims.contains("deviceClassName: gpu"), "{claims}");
    let pods = &files["objects/pods-with-claims.yaml"];
    assert!(pods.contains("name: web") && !pods.contains("name: gpu") && !pods.contains("TOKEN"), "{pods}");
    assert_eq!(
        files["events.txt"],
        "2026-11-22T11:59:00Z Warning Failed Pod shop/web x1 by unknown: plugin says: Bearer (redacted)\n"
    );
    assert_eq!(files["logs/netclaim-agent-a/agent.log"], "attached with (redacted)\n");
    assert_eq!(files["logs/netclaim-agent-a/agent.previous.log"], "panicked: password=(redacted)\n");
    assert!(!files.contains_key("logs/netclaim-controller-b/agent.previous.log"));

    let missing: Vec<&str> = missing.iter().map(|missing| missing.split(": ").next().unwrap()).collect();
    assert_eq!(missing, ["status", "validatingwebhookconfigurations", "nodes"]);
    assert!(files["README.md"].contains("* nodes: cannot list nodes: "), "{}", files["README.md"]);
}

const AGENTS_LOG: &str = "/api/v1/namespaces/netclaim-system/pods/netclaim-agent-a/log";

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_hangs_does_not_stop_the_report() {
    let client =
        api_server(|uri| if uri.starts_with(AGENTS_LOG) { (HANGS, Value::Null) } else { answer(uri) });
    let (files, missing) = made(client).await.unwrap();
    assert!(files.contains_key("logs/netclaim-controller-b/agent.log"), "{:?}", files.keys());
    let late = "logs/netclaim-agent-a/agent.log: nothing has come for 10 s: deadline has elapsed".to_owned();
    assert!(missing.contains(&late), "{missing:?}");
}

#[tokio::test]
async fn without_the_right_to_logs_one_line_says_so() {
    let client = api_server(|uri| {
        let is_log = uri.split('?').next().is_some_and(|path| path.ends_with("/log"));
        if is_log { status(403, "Forbidden") } else { answer(uri) }
    });
    let (files, missing) = made(client).await.unwrap();
    assert!(!files.keys().any(|name| name.starts_with("logs/")), "{:?}", files.keys());
    let logs: Vec<&String> = missing.iter().filter(|missing| missing.starts_with("logs")).collect();
    assert!(matches!(logs.as_slice(), [one] if one.starts_with("logs: ")), "{missing:?}");
}

#[tokio::test]
async fn a_list_that_has_no_room_is_read_to_its_end() {
    let client = api_server(|uri| {
        if uri.split('?').next() != Some("/api/v1/namespaces/netclaim-system/pods") {
            return answer(uri);
        }
        let mut agent = own_pod("netclaim-agent-a", "netclaim-agent", 0);
        agent["metadata"]["annotations"] = json!({"long": "a".repeat(archive::MAX_FILE)});
        items([agent, own_pod("netclaim-controller-b", "netclaim-controller", 0)])
    });
    let (files, _) = made(client).await.unwrap();
    assert_eq!(files["objects/pods.yaml"], "");
    assert!(files["README.md"].contains("* `objects/pods.yaml`: pods, those of netclaim. **Truncated**"));
    assert!(files["versions.txt"].contains("2 x localhost/netclaim-agent:dev"), "{}", files["versions.txt"]);
    assert!(files.contains_key("logs/netclaim-controller-b/agent.log"), "{:?}", files.keys());
}

#[tokio::test]
async fn a_file_that_exists_is_noticed_before_the_cluster_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.tar.gz");
    std::fs::write(&file, "mine").unwrap();
    let no_cluster = folder.path().join("kubeconfig");
    let line = ["--output", file.to_str().unwrap(), "--kubeconfig", no_cluster.to_str().unwrap()];
    let error = written(&args(&line), &mut Vec::new()).await.unwrap_err();
    assert_eq!(error_chain(&error), format!("cannot write {}: entity already exists", file.display()));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[tokio::test]
async fn without_any_right_there_is_no_report() {
    let client = api_server(|uri| if uri == "/version" { version() } else { status(403, "Forbidden") });
    let error = made(client).await.unwrap_err();
    assert!(error.to_string().starts_with("nothing can be read: status: "), "{error}");
}

#[test]
fn ages_are_durations() {
    assert_eq!(args(&[]).since, SignedDuration::from_hours(1));
    assert_eq!(args(&["--since=90m"]).since, SignedDuration::from_mins(90));
    for wrong in ["--since=0s", "--since=-1h", "--since=yesterday"] {
        assert!(Cli::try_parse_from(["netclaimctl", "bugreport", wrong]).is_err(), "{wrong}");
    }
    assert_eq!(default_name(now()).to_str(), Some("netclaim-bugreport-20261122T120000Z.tar.gz"));
}
