//! From a fake API server to texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::mock::{api_server, status};
use crate::{Cli, Command};

fn object(status: &str, reason: &str) -> Value {
    let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "why", "lastTransitionTime": "2026-11-29T00:00:00Z"});
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "NetworkAttachment",
        "metadata": {"namespace": "shop", "name": "web-0-backup", "uid": "au"},
        "spec": {"podName": "web-0", "resourceClaimTemplateName": "backup"},
        "status": {"node": "a", "interfaces": [{"name": "net2", "ips": ["10.20.0.2"]}],
            "conditions": [condition("Allocated", "True", "Allocated"), condition("Attached", status, reason)]}})
}

fn waiting(line: &[&str]) -> Waiting {
    let line = ["netclaimctl", "detach", "web-0-backup"].iter().chain(line);
    match Cli::try_parse_from(line).unwrap().command {
        Command::Detach(args) => args.waiting,
        other => panic!("{other:?}"),
    }
}

/// Answers each read with the next of these, and the last one again and again.
fn api(answers: Vec<(u16, Value)>) -> Api<NetworkAttachment> {
    let count = Arc::new(AtomicUsize::new(0));
    let client = api_server(move |_| {
        let index = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
        answers[index].clone()
    });
    Api::namespaced(client, "shop")
}

#[test]
fn an_attachment_is_named_after_pod_and_template() {
    let line =
        ["netclaimctl", "attach", "web-0", "--template", "backup", "--interface-name", "lan0", "-n", "shop"];
    let Command::Attach(args) = Cli::try_parse_from(line).unwrap().command else { panic!("attach") };
    assert_eq!((args.pod.as_str(), args.template.as_str()), ("web-0", "backup"));
    assert_eq!(args.interface_name.as_ref().map(IfName::as_str), Some("lan0"));
    for wrong in [&["attach", "web-0"][..], &["attach", "Web", "--template", "backup"], &["detach"]] {
        assert!(Cli::try_parse_from(["netclaimctl"].iter().chain(wrong)).is_err(), "{wrong:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_pod_has_the_interfaces_or_never_will() {
    let wait = waiting(&["--timeout", "10"]);
    let failing = (200, object("False", "AttachFailed"));
    let made = api(vec![failing.clone(), failing.clone(), (200, object("True", "Attached"))]);
    assert_eq!(wait.is_attached(&made, "x").await.as_deref(), Ok("pod web-0 has net2 (10.20.0.2)"));
    let began = Instant::now();
    let mut refused = object("False", "Refused");
    refused["status"]["conditions"][0] = json!({"type": "Allocated", "status": "False", "reason": "Refused",
        "message": "why", "lastTransitionTime": "2026-11-29T00:00:00Z"});
    let refused = wait.is_attached(&api(vec![(200, refused)]), "x").await.unwrap_err();
    assert_eq!(refused, "NetworkAttachment x waits for its devices: Refused: why");
    assert!(began.elapsed() < LOOK_INTERVAL, "it is final");
    let late = wait.is_attached(&api(vec![failing]), "x").await.unwrap_err();
    assert!(late.contains("AttachFailed") && began.elapsed() >= Duration::from_secs(10), "{late}");
    let gone = wait.is_attached(&api(vec![status(404, "NotFound")]), "x").await.unwrap_err();
    assert!(gone.contains("was deleted meanwhile"), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn a_detach_is_done_when_the_object_is_gone() {
    let wait = waiting(&["--timeout", "10"]);
    let mut leaving = object("True", "Attached");
    leaving["metadata"]["deletionTimestamp"] = json!("2026-11-29T00:00:00Z");
    let gone = api(vec![(200, leaving.clone()), status(404, "NotFound")]);
    assert_eq!(wait.is_gone(&gone, "x").await, Ok(()));
    let mut another = object("True", "Attached");
    another["metadata"]["uid"] = json!("bu");
    assert_eq!(wait.is_gone(&api(vec![(200, leaving.clone()), (200, another)]), "x").await, Ok(()));
    let late = wait.is_gone(&api(vec![(200, leaving)]), "x").await.unwrap_err();
    assert!(late.contains("is being detached from pod web-0"), "{late}");
}
