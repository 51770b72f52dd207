//! The worst that a stranger can send who knows the path: bodies of 3 MiB of each kind, through the whole
//! server. Each takes little memory and time.
//!
//! One test in a binary of its own, because it measures the memory of the process.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use netclaim_webhook::{Certificates, Metrics, Names, Webhook};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const DNS: &str = "netclaim-webhook.netclaim-system.svc";
const MAX_BODY: usize = 3 * 1024 * 1024;
/// What a review may take, in KiB: two run at once beside the controller.
const MEMORY: usize = 64 * 1024;
/// What a review may take if it is built as for users. Without optimisation, and beside other tests, it may
/// end by its own deadline.
const TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
const STATUS: &[&str] = if cfg!(debug_assertions) { &["200", "408"] } else { &["200"] };

fn path() -> String {
    format!("/review/{}", "0a".repeat(32))
}

/// A client of an API server that has the configuration with the path. A fake: it answers every request with
/// it.
fn client() -> Client {
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "netclaim-webhook", "resourceVersion": "1"},
        "webhooks": [{"name": "parameters.netclaim.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"namespace": "netclaim-system", "name": "netclaim-webhook", "path": path()}}}],
    });
    let (service, mut requests) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        while let Some((_, reply)) = requests.next_request().await {
            reply.send_response(Response::new(Body::from(configuration.to_string().into_bytes())));
        }
    });
    Client::new(service, "default")
}

/// Starts the webhook. Returns its address, and what its clients trust.
async fn webhook(dir: &std::path::Path) -> (SocketAddr, RootCertStore) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([DNS.to_owned()]).unwrap().self_signed(&key).unwrap();
    let text = |label: &str, der: &[u8]| pem::encode(&pem::Pem::new(label, der));
    fs::write(dir.join("tls.crt"), text("CERTIFICATE", certificate.der())).unwrap();
    fs::write(dir.join("tls.key"), text("PRIVATE KEY", key.serialized_der())).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();

    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let names = Names { namespace: "netclaim-system".into(), name: "netclaim-webhook".into() };
    let certificates = Certificates::Directory(dir.to_owned());
    let webhook = Webhook::bind(address, names, certificates, Metrics::default()).await.unwrap();
    let health = webhook.health().clone();
    tokio::spawn(webhook.run(client(), "netclaim.dev"));
    while health.check().is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (address, roots)
}

/// Posts a body and returns the status and the beginning of the answer.
async fn post(address: SocketAddr, roots: RootCertStore, body: &str) -> Result<String, Infallible> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream =
        TlsConnector::from(Arc::new(config)).connect(DNS.try_into().unwrap(), stream).await.unwrap();
    let head = format!("POST {} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", path(), body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer).await.unwrap_or_default();
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

fn review(group: &str, kind: &str, object: &str) -> String {
    let version = if group == "netclaim.dev" { "v1alpha1" } else { "v1" };
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"1","kind":{{"group":"{group}","kind":"{kind}"}},
        "operation":"CREATE","object":{{"apiVersion":"{group}/{version}","kind":"{kind}","metadata":{{"name":"a"}},"spec":{object}}}}}}}"#
    )
}

/// As many items as fit into a body, or `count`, joined by commas.
fn items(item: impl Fn(usize) -> String, count: usize, room: usize) -> String {
    let mut list = String::new();
    for index in 0..count {
        let item = item(index);
        if list.len() + item.len() + 1 > room {
            break;
        }
        if index > 0 {
            list.push(',');
        }
        list.push_str(&item);
    }
    list
}

const ALL: usize = usize::MAX;
const ROOM: usize = MAX_BODY - 4096;

/// A ClaimNetwork whose plugin has this beside its type.
fn network(plugin: &str, rest: &str) -> String {
    let spec = format!(r#"{{"cni":{{"cniVersion":"1.1.0","plugins":[{{"type":"dummy",{plugin}}}]}}{rest}}}"#);
    review("netclaim.dev", "ClaimNetwork", &spec)
}

fn claim(requests: &str, configs: &str) -> String {
    let spec = format!(r#"{{"devices":{{"requests":[{requests}],"config":[{configs}]}}}}"#);
    review("resource.k8s.io", "ResourceClaim", &spec)
}

fn config(requests: &str, parameters: &str) -> String {
    format!(
        r#"{{{requests}"opaque":{{"driver":"netclaim.dev","parameters":{{"apiVersion":"netclaim.dev/v1alpha1","kind":"AttachmentConfig",{parameters}}}}}}}"#
    )
}

/// Bodies by what is bad about them. The first ones are refused by weight, the others just pass it.
fn bodies() -> Vec<(&'static str, String)> {
    let parameters =
        |count: usize| items(|index| format!(r#""{index:05}":{{"type":"boolean"}}"#), count, ROOM);
    let placeholders = |count: usize, room: usize| items(|_| r#""${}""#.to_owned(), count, room);
    let request = |index: usize| format!(r#"{{"name":"a{index}","exactly":{{"deviceClassName":"a"}}}}"#);
    let own = |index: usize| {
        config(&format!(r#""requests":["a{index}"],"#), &format!(r#""interfaceName":"b{index}""#))
    };
    let allow = |parameters: &str| format!(r#","allow":{{"parameters":{{{parameters}}}}}"#);
    let range = |index: usize| {
        let [b, c] = [index / 256, index % 256];
        format!(r#"[{{"subnet":"10.{b}.{c}.0/24","rangeStart":"10.0.0.1"}}]"#)
    };
    let values = items(|index| format!(r#""{index}""#), 256, ROOM);
    let long = "a|".repeat(500);
    let rule = |index: usize| {
        format!(r#""p{index}":{{"type":"string","pattern":"^({long}b)$","enum":[{values}],"default":"x"}}"#)
    };
    let alternatives = |index: usize| {
        let alternative = |j: usize| format!(r#"{{"name":"b{j}","deviceClassName":"a"}}"#);
        format!(r#"{{"name":"a{index}","firstAvailable":[{}]}}"#, items(alternative, 8, ROOM))
    };
    let settings = |index: usize| {
        let of = items(|j| format!(r#""a{j}/b7""#), 32, ROOM);
        let arguments = items(|j| format!(r#""x{j}":"=""#), 500, ROOM);
        config(
            &format!(r#""requests":[{of}],"#),
            &format!(r#""interfaceName":"b{index}","args":{{{arguments}}}"#),
        )
    };
    let selector = |index: usize| {
        format!(r#"{{"cel":{{"expression":"device.attributes[\"netclaim.dev\"].a{index} == {index}"}}}}"#)
    };
    let deep = format!(
        r#"{{"cel":{{"expression":"{}device.driver == \"netclaim.dev\"{}"}}}}"#,
        "(".repeat(30_000),
        ")".repeat(30_000)
    );
    let nested = |depth: usize| format!("{}0{}", r#"{"":["#.repeat(depth), "]}".repeat(depth));
    vec![
        (
            "parameters and placeholders that are unknown",
            network(&format!(r#""a":[{}]"#, placeholders(ALL, 2_000_000)), &allow(&parameters(20_000))),
        ),
        (
            "requests with a config each",
            claim(&items(request, 16_000, ROOM / 3), &items(own, 16_000, ROOM / 3 * 2)),
        ),
        (
            "objects of one member",
            network(&format!(r#""a":[{}]"#, items(|_| r#"{"":0}"#.to_owned(), ALL, ROOM)), ""),
        ),
        ("lists of one item", network(&format!(r#""a":[{}]"#, items(|_| "[0]".to_owned(), ALL, ROOM)), "")),
        (
            "a long key",
            network(
                &format!(r#""{}":[{}]"#, "k".repeat(1_500_000), items(|_| "0".to_owned(), 30_000, ROOM)),
                "",
            ),
        ),
        ("what is not part of a specification", {
            let list = items(|_| r#"{"":0}"#.to_owned(), ALL, ROOM / 2);
            let others = format!(r#""status":[{list}],"metadata":{{"x":[{list}],"#);
            network("\"a\":0", "").replace(r#""metadata":{"#, &others)
        }),
        ("a large text", network(&format!(r#""a":"{}""#, "x".repeat(ROOM)), "")),
        ("a text of placeholders", network(&format!(r#""a":"{}""#, "${}".repeat(ROOM / 3)), "")),
        ("placeholders beside many parameters", {
            network(&format!(r#""a":[{}]"#, placeholders(250, ROOM)), &allow(&parameters(10_000)))
        }),
        (
            "many small objects",
            network(&format!(r#""a":[{}]"#, items(|_| r#"{"":0}"#.to_owned(), 15_000, ROOM)), ""),
        ),
        ("plugins that all have the addresses", {
            let plugins = items(|_| r#"{"type":"a","ipam":"${addresses}"}"#.to_owned(), 250, ROOM);
            let excluded = items(|_| r#""10.0.0.9""#.to_owned(), 256, ROOM);
            let ranges = items(
                |index| format!(r#"{{"subnet":"10.{index}.0.0/16","exclude":[{excluded}]}}"#),
                64,
                ROOM,
            );
            let spec = format!(
                r#"{{"cni":{{"cniVersion":"1.1.0","plugins":[{plugins}]}},"addresses":{{"ranges":[{ranges}]}}}}"#
            );
            review("netclaim.dev", "ClaimNetwork", &spec)
        }),
        ("ranges of a plugin that overlap", {
            let ipam = format!(r#""ipam":{{"type":"host-local","ranges":[{}]}}"#, items(range, 8000, ROOM));
            network(&ipam, "")
        }),
        ("routes beside many keys", {
            let keys = items(|index| format!(r#""k{index}":0"#), 10_000, ROOM);
            let routes = items(|_| r#"{"gw":"a"}"#.to_owned(), 10_000, ROOM);
            network(&format!(r#""ipam":{{"type":"static","routes":[{routes}],{keys}}}"#), "")
        }),
        ("patterns with many values", network(r#""a":"${parameters.p1}""#, &allow(&items(rule, 64, ROOM)))),
        ("a pattern of a body's length", {
            network(
                "\"a\":0",
                &allow(&format!(r#""p":{{"type":"string","pattern":"^({})$"}}"#, "a|".repeat(ROOM / 2))),
            )
        }),
        (
            "as many requests and configs as there may be",
            claim(&items(alternatives, 32, ROOM), &items(settings, 32, ROOM)),
        ),
        ("many selectors", {
            let request =
                format!(r#"{{"name":"a","exactly":{{"selectors":[{}]}}}}"#, items(selector, 7000, ROOM));
            claim(&request, &config("", r#""interfaceName":"b""#))
        }),
        ("a deep selector", {
            let request = format!(r#"{{"name":"a","exactly":{{"selectors":[{deep}]}}}}"#);
            claim(&request, &config("", r#""interfaceName":"b""#))
        }),
        ("labels that are none", {
            let values = items(|_| r#""%""#.to_owned(), 30_000, ROOM);
            network(
                "\"a\":0",
                &format!(
                    r#","nodeSelector":{{"matchExpressions":[{{"key":"a","operator":"In","values":[{values}]}}]}}"#
                ),
            )
        }),
        ("deep objects", network(&format!(r#""a":[{}]"#, items(|_| nested(50), 300, ROOM)), "")),
        ("fields that are unknown", {
            let fields = items(|index| format!(r#""f{index}":[0]"#), 15_000, ROOM);
            network("\"a\":0", &format!(",{fields}"))
        }),
    ]
}

/// The largest memory of the process since the last call, in KiB.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    // Sets the largest memory to the present one.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worst_bodies_take_little_memory_and_time() {
    if fs::write("/proc/self/clear_refs", "5").is_err() {
        // Past the test harness, which shows nothing of tests that pass.
        let skipped =
            "\nSKIPPED: the_worst_bodies_take_little_memory_and_time: this kernel has no clear_refs\n";
        std::io::Write::write_all(&mut std::io::stderr(), skipped.as_bytes()).unwrap();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (address, roots) = webhook(dir.path()).await;
    let mut bad = Vec::new();
    for (what, body) in bodies() {
        assert!(body.len() <= MAX_BODY, "{what}: {} bytes", body.len());
        peak();
        let before = peak();
        let begun = Instant::now();
        let answer = post(address, roots.clone(), &body).await.unwrap();
        let (took, memory) = (begun.elapsed(), peak().saturating_sub(before));
        let status = answer.lines().next().unwrap_or_default();
        println!("{what}: {} KiB, {memory} KiB more, {took:?}, {status}", body.len() / 1024);
        let is_answered = STATUS.iter().any(|code| status.contains(code));
        if !is_answered || memory > MEMORY || took > TIME {
            bad.push(format!("{what}: {memory} KiB, {took:?}: {answer:.300}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let good =
        claim(r#"{"name":"a","exactly":{"deviceClassName":"a"}}"#, &config("", r#""interfaceName":"b""#));
    let answer = post(address, roots, &good).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains(r#""allowed":true"#), "{answer}");
}
