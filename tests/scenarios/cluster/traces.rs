//! Traces: what an OpenTelemetry Collector gets of a pod's start and end, and what pods notice of a collector
//! that is away.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::text;
use netclaim_tests::{AGENT, SYSTEM, Test, eventually};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tonic::Code;

use crate::collector::{Certificates, Collector, HEADER, SECRET, hex};

fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value?;
    match value {
        any_value::Value::StringValue(text) => Some(text),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The first span of this name.
fn named<'a>(spans: &'a [Span], name: &str) -> Result<&'a Span> {
    spans.iter().find(|span| span.name == name).with_context(|| format!("there is no span {name:?}"))
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

/// An agent with other variables, until it is dropped.
struct Traced<'a> {
    test: &'a Test<'a>,
    /// The variables.
    names: Vec<&'static str>,
}

/// The machine's address for the node: the API server's.
fn host(test: &Test<'_>) -> Result<IpAddr> {
    let server = ["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"];
    let server = test.cluster.kubectl(&server)?;
    let host = server.trim().trim_start_matches("https://");
    Ok(host.trim_matches(['[', ']']).parse()?)
}

impl<'a> Traced<'a> {
    /// Has the agent send traces to this port of the machine.
    fn to(test: &'a Test<'a>, port: u16) -> Result<Self> {
        Self::by(test, "http", port, &[])
    }

    /// Has the agent send traces to this port of the machine, by `http` or `https`, with more variables.
    fn by(test: &'a Test<'a>, scheme: &str, port: u16, more: &[(&'static str, String)]) -> Result<Self> {
        let address = SocketAddr::new(host(test)?, port);
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("{scheme}://{address}")),
            ("OTEL_EXPORTER_OTLP_HEADERS", format!("{HEADER}={SECRET}")),
            ("OTEL_BSP_SCHEDULE_DELAY", "200".to_owned()),
        ];
        let variables: Vec<_> = variables.iter().chain(more).collect();
        let traced = Self { test, names: variables.iter().map(|(name, _)| *name).collect() };
        let settings: Vec<String> = variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        test.cluster.set_agent_env(&settings.iter().map(String::as_str).collect::<Vec<_>>())?;
        test.cluster.agent_ready()?;
        Ok(traced)
    }

    /// Stops to send traces.
    fn end(self) -> Result<()> {
        self.reset()?;
        self.test.cluster.agent_ready()
    }

    fn reset(&self) -> Result<()> {
        let unset: Vec<String> = self.names.iter().map(|name| format!("{name}-")).collect();
        self.test.cluster.set_agent_env(&unset.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn log(&self) -> Result<String> {
        self.test.cluster.kubectl(&["logs", "-n", SYSTEM, AGENT])
    }
}

impl Drop for Traced<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.reset() {
            eprintln!("the agent still sends traces: {error:#}");
        }
    }
}

/// The id of a claim's trace.
fn trace_id(test: &Test<'_>, claim: &str) -> Result<String> {
    Ok(text(&test.get("resourceclaim", claim)?["metadata"]["uid"]).replace('-', ""))
}

pub fn a_trace_leads_from_prepare_over_the_plugins_to_the_claims_status_and_to_the_end(
    test: &Test<'_>,
) -> Result<()> {
    let collector = Collector::start(test, None)?;
    let traced = Traced::to(test, collector.port)?;
    let calls = "/var/lib/cni/netclaim-test-traces";
    // What the plugin prints to standard error is in the agent's log, with the trace.
    let note = format!("echo \"$CNI_COMMAND $TRACEPARENT\" >>{calls}\necho note-of-$CNI_COMMAND >&2");
    let plugin = test.plugin("plugin", &format!("{note}\nexec /opt/cni/bin/macvlan"))?;
    let network = test.network_by(&plugin)?;
    test.start_pod("p", &network)?;
    let id = trace_id(test, "p")?;
    let (add, attach) = (format!("ADD {plugin}"), format!("attach {network}"));
    let (call, status) = ("NodePrepareResources", "write ResourceClaim status");
    let below = ["prepare claim", "wait for sandbox", &attach, "hold containers", status];
    let others = [call, "read ResourceClaim", &add];
    let spans = collector.trace_with(&id, &[below.as_slice(), &others].concat())?;
    ensure!(spans.iter().all(|span| !is_error(span)), "{spans:?}");

    // Who is below whom.
    let root = named(&spans, call)?;
    ensure!(root.parent_span_id.is_empty(), "{root:?}");
    for name in below {
        ensure!(named(&spans, name)?.parent_span_id == root.span_id, "{name} is not below {call}: {spans:?}");
    }
    for (name, parent) in [("read ResourceClaim", "prepare claim"), (&add, &attach)] {
        let (span, parent) = (named(&spans, name)?, named(&spans, parent)?);
        ensure!(span.parent_span_id == parent.span_id, "{name}: {spans:?}");
        ensure!(span.start_time_unix_nano >= parent.start_time_unix_nano, "{name}: {spans:?}");
        ensure!(span.end_time_unix_nano <= parent.end_time_unix_nano, "{name}: {spans:?}");
    }
    let (waited, attached) = (named(&spans, "wait for sandbox")?, named(&spans, &attach)?);
    ensure!(attached.start_time_unix_nano >= waited.start_time_unix_nano, "{spans:?}");
    ensure!(named(&spans, "hold containers")?.end_time_unix_nano >= attached.end_time_unix_nano, "{spans:?}");

    // What they say.
    let pod = text(&test.get("pod", "p")?["metadata"]["uid"]);
    for (span, name, value) in [
        (call, "rpc.system.name", "grpc"),
        (call, "rpc.method", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"),
        ("prepare claim", "k8s.pod.uid", &pod),
        (&attach, "k8s.pod.uid", &pod),
        (&attach, "k8s.pod.name", "p"),
        (&attach, "k8s.namespace.name", test.namespace()),
        (&attach, "network.interface.name", "net1"),
        (&attach, "netclaim.network", &network),
        (&add, "cni.command", "ADD"),
        (&add, "cni.plugin.type", &plugin),
        (status, "netclaim.claim.name", "p"),
        (status, "http.request.method", "PATCH"),
    ] {
        let seen = attribute(&named(&spans, span)?.attributes, name);
        ensure!(seen.as_deref() == Some(value), "{span}: {name} is {seen:?}, not {value}");
    }
    let resource = collector.resource()?;
    for (name, value) in [("service.name", "netclaim-agent"), ("k8s.node.name", "node0")] {
        ensure!(attribute(&resource, name).as_deref() == Some(value), "{name}: {resource:?}");
    }
    // Each span came with the header: the Collector takes nothing without it.
    let refusal = collector.call_without_header()?.err().context("the Collector needs no header")?;
    ensure!(refusal.code() == Code::Unauthenticated, "{refusal:?}");

    // The plugin's own spans would be below ours.
    let seen = fs::read_to_string(test.cluster.node().path(calls))?;
    let parent = format!("ADD 00-{id}-{}-01", hex(&named(&spans, &add)?.span_id));
    ensure!(seen.lines().any(|line| line == parent), "the plugin saw {seen}, and not {parent}");

    // The log has the same trace, is no longer than before, and keeps the secret.
    let log = traced.log()?;
    let note =
        log.lines().find(|line| line.contains("note-of-ADD")).context("the plugin's note is not logged")?;
    ensure!(note.contains(&format!("trace_id={id}")), "{note}");
    ensure!(!log.contains("NodePrepareResources") && !log.contains("otel."), "the log shows spans:\n{log}");
    ensure!(!log.contains(SECRET), "the log shows the header");

    test.delete_pod("p")?;
    let (del, detach) = (format!("DEL {plugin}"), format!("detach {network}"));
    let spans = collector.trace_with(&id, &[&del, &detach, "NodeUnprepareResources"])?;
    ensure!(named(&spans, &del)?.parent_span_id == named(&spans, &detach)?.span_id, "{spans:?}");
    fs::remove_file(test.cluster.node().path(calls))?;
    traced.end()
}

pub fn the_span_of_a_plugin_that_fails_says_why(test: &Test<'_>) -> Result<()> {
    let collector = Collector::start(test, None)?;
    let traced = Traced::to(test, collector.port)?;
    let flag = "/var/lib/cni/netclaim-test-traces-failed";
    let refuse = r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "the switch says no"}'; exit 1"#;
    let network = test.network_after(&format!("[ -e {flag} ] || {{ echo >{flag}; {refuse}; }}"))?;
    test.start_pod("p", &network)?;
    let add = format!("ADD {}", test.name("plugin"));
    let (attach, status) = (format!("attach {network}"), "write ResourceClaim status");
    let id = trace_id(test, "p")?;
    let spans = collector.trace_with(&id, &[&add, &attach, status])?;
    for name in [&add, &attach] {
        let failed = named(&spans, name)?;
        let why = failed.status.clone().unwrap_or_default().message;
        ensure!(is_error(failed) && why.contains("the switch says no"), "{failed:?}");
    }
    let succeeded = eventually(30, "the second ADD is in the trace", || {
        let mut adds = collector.trace(&id).into_iter().filter(|span| span.name == add && !is_error(span));
        adds.next_back().context("it is not")
    })?;
    let first = named(&spans, &add)?;
    ensure!(succeeded.start_time_unix_nano > first.end_time_unix_nano, "{succeeded:?} {first:?}");
    fs::remove_file(test.cluster.node().path(flag))?;
    traced.end()
}

pub fn the_agent_sends_traces_by_tls_only_to_a_collector_with_a_certificate_of_its_ca(
    test: &Test<'_>,
) -> Result<()> {
    // The agent has this folder of its node.
    let folder = "/var/lib/cni/netclaim-test-traces-tls";
    let certificates = Certificates::make(&test.cluster.node().path(folder), host(test)?)?;
    let of_another_ca = Certificates::make(&test.cluster.dir().join("another-ca"), host(test)?)?;
    let mut collector = Collector::start(test, Some(&of_another_ca))?;
    let files = [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", format!("{folder}/ca.crt")),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", format!("{folder}/client.crt")),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", format!("{folder}/client.key")),
    ];
    let traced = Traced::by(test, "https", collector.port, &files)?;
    let network = test.macvlan("a")?;
    test.start_pod("refused", &network)?;
    let refused = trace_id(test, "refused")?;
    eventually(30, "the log says that the certificate is not of this CA", || {
        let log = traced.log()?;
        let refusal = log.lines().find(|line| line.contains("cannot send traces"));
        ensure!(refusal.is_some_and(|line| line.contains("invalid peer certificate")), "it does not: {log}");
        Ok(())
    })?;
    let spans = collector.trace(&refused);
    ensure!(spans.is_empty(), "the Collector with another CA got {spans:?}");

    // The next batch connects again.
    collector.restart(Some(&certificates))?;
    test.start_pod("taken", &network)?;
    let taken = trace_id(test, "taken")?;
    collector.trace_with(&taken, &["NodePrepareResources", &format!("attach {network}"), "ADD macvlan"])?;
    test.delete_pod("taken")?;
    collector.trace_with(&taken, &["NodeUnprepareResources", "DEL macvlan"])?;
    ensure!(!traced.log()?.contains(SECRET), "the log shows the header");
    traced.end()
}

pub fn a_collector_that_is_away_or_hangs_delays_no_pod_and_is_logged_once(test: &Test<'_>) -> Result<()> {
    let network = test.macvlan("a")?;
    let start = |name: &str| -> Result<Duration> {
        let begin = Instant::now();
        test.start_pod(name, &network)?;
        Ok(begin.elapsed())
    };
    // The first pod may be slower.
    start("first")?;
    let without = start("without")?;
    // No program listens at the first port. At the second the kernel takes connections, and no program
    // answers.
    let hanging = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let closed = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port();
    for (name, port) in [("away", closed), ("hangs", hanging.local_addr()?.port())] {
        let traced = Traced::to(test, port)?;
        let took = start(name)?;
        ensure!(took < without + Duration::from_secs(3), "{name}: {took:?}, without traces {without:?}");
        let begin = Instant::now();
        test.delete_pod(name)?;
        ensure!(
            begin.elapsed() < Duration::from_secs(40),
            "{name}: the pod ended after {:?}",
            begin.elapsed()
        );
        let warning = "cannot send traces";
        let log = eventually(40, "the log says that the collector takes nothing", || {
            let log = traced.log()?;
            ensure!(log.contains(warning), "it does not: {log}");
            Ok(log)
        })?;
        ensure!(log.matches(warning).count() == 1, "{name}: it says so more than once:\n{log}");
        ensure!(!log.contains(SECRET), "the log shows the header");
        // The agent ends as fast as ever: the rollout waits for it.
        traced.end()?;
    }
    Ok(())
}
