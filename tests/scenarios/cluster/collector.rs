//! The OpenTelemetry Collector, with a receiver of the test behind it.
//!
//! ```text
//! agent ── OTLP, with a header, plain or by TLS ──> Collector ── OTLP ──> Backend: what scenarios look at
//! ```
//!
//! The Collector is the project's own program, of the modules in `tests/programs/otelcol`.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::{Running, Test, eventually, output, programs};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

/// The header that the Collector wants from clients.
pub const HEADER: &str = "api-key";
/// The header's value.
pub const SECRET: &str = "s3cret-of-the-collector";
/// The variable that the Collector reads its configuration from.
const CONFIG: &str = "NETCLAIM_TEST_OTELCOL";

/// A Collector that runs until this value is dropped.
pub struct Collector {
    path: PathBuf,
    program: Option<Running>,
    /// The file with what all Collectors of the cluster have printed.
    log: PathBuf,
    /// Where it takes spans, on all addresses of the machine.
    pub port: u16,
    backend: Backend,
    backend_port: u16,
    runtime: Runtime,
}

impl Collector {
    /// Starts a Collector that takes spans without TLS, or with the certificates of a folder.
    pub fn start(test: &Test<'_>, tls: Option<&Certificates>) -> Result<Self> {
        let path = programs::built_or_skipped(test, "otelcol")?;
        let runtime = Runtime::new()?;
        let (backend, backend_port) = Backend::start(&runtime)?;
        // The Collector does not say which port it chose, so the kernel chooses one here.
        let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port();
        let log = test.cluster.dir().join("log/otelcol.log");
        let mut collector = Self { path, program: None, log, port, backend, backend_port, runtime };
        collector.restart(tls)?;
        Ok(collector)
    }

    /// Ends the Collector's process, and starts another one at the same port.
    pub fn restart(&mut self, tls: Option<&Certificates>) -> Result<()> {
        self.program = None;
        let mut command = Command::new(&self.path);
        command.arg(format!("--config=env:{CONFIG}")).env(CONFIG, self.config(tls));
        let log = File::options().create(true).append(true).open(&self.log)?;
        self.program = Some(Running::logged(&mut command, log)?);
        eventually(30, "the Collector takes connections", || {
            let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
            connection.with_context(|| std::fs::read_to_string(&self.log).unwrap_or_default()).map(drop)
        })
    }

    /// Its configuration; JSON is YAML, too. Nothing is queued or retried: the agent hears what the backend
    /// answers.
    fn config(&self, tls: Option<&Certificates>) -> String {
        let mut grpc = json!({
            "endpoint": format!("0.0.0.0:{}", self.port),
            "auth": {"authenticator": "bearertokenauth"},
        });
        if let Some(tls) = tls {
            grpc["tls"] = json!({
                "cert_file": tls.file("server.crt"),
                "key_file": tls.file("server.key"),
                "client_ca_file": tls.file("ca.crt"),
            });
        }
        let exporter = json!({
            "endpoint": format!("127.0.0.1:{}", self.backend_port),
            "tls": {"insecure": true},
            "compression": "none",
            "sending_queue": {"enabled": false},
            "retry_on_failure": {"enabled": false},
        });
        let config = json!({
            "extensions": {"bearertokenauth": {"header": HEADER, "scheme": "", "token": SECRET}},
            "receivers": {"otlp": {"protocols": {"grpc": grpc}}},
            "exporters": {"otlp_grpc": exporter},
            "service": {
                "extensions": ["bearertokenauth"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["otlp_grpc"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        });
        config.to_string()
    }

    /// Sends an empty request to a Collector without TLS, as a client without the header.
    pub fn call_without_header(&self) -> Result<Result<(), Status>> {
        self.runtime.block_on(async {
            let address = format!("http://127.0.0.1:{}", self.port);
            let mut client = TraceServiceClient::connect(address).await?;
            Ok(client.export(ExportTraceServiceRequest::default()).await.map(drop))
        })
    }

    /// The attributes of the program that sent the first spans.
    pub fn resource(&self) -> Result<Vec<KeyValue>> {
        Ok(self.backend.received().first().context("nothing was received")?.resource.clone())
    }

    /// The spans of a trace that the Collector has passed on, by the order of their start.
    pub fn trace(&self, id: &str) -> Vec<Span> {
        let received = self.backend.received();
        let mut spans: Vec<Span> = received.iter().flat_map(|received| received.spans.clone()).collect();
        spans.retain(|span| hex(&span.trace_id) == id);
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    /// Waits until a trace has spans of all these names, and returns all of its spans.
    pub fn trace_with(&self, id: &str, names: &[&str]) -> Result<Vec<Span>> {
        eventually(30, "the Collector has passed on the trace", || {
            let spans = self.trace(id);
            let seen: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
            let missing: Vec<&&str> = names.iter().filter(|name| !seen.contains(name)).collect();
            ensure!(missing.is_empty(), "{missing:?} are missing in trace {id}: it has {seen:?}");
            Ok(spans)
        })
    }
}

/// Writes bytes as an id is written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the Collector sends to.
#[derive(Clone, Default)]
struct Backend(Arc<Mutex<Vec<Received>>>);

/// Spans of one program.
struct Received {
    /// The attributes of the program.
    resource: Vec<KeyValue>,
    spans: Vec<Span>,
}

#[tonic::async_trait]
impl TraceService for Backend {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_program in request.into_inner().resource_spans {
            let resource = of_program.resource.map(|resource| resource.attributes).unwrap_or_default();
            let spans = of_program.scope_spans.into_iter().flat_map(|scope| scope.spans).collect();
            self.received().push(Received { resource, spans });
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Backend {
    /// Starts it in `runtime`, at a port of its own.
    fn start(runtime: &Runtime) -> Result<(Self, u16)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        listener.set_nonblocking(true)?;
        let backend = Self::default();
        let service = TraceServiceServer::new(backend.clone());
        runtime.spawn(async move {
            let incoming =
                tokio_stream::wrappers::TcpListenerStream::new(tokio::net::TcpListener::from_std(listener)?);
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.map_err(std::io::Error::other)
        });
        Ok((backend, port))
    }

    fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A folder with a CA of its own (`ca.crt`), and certificates by it: `server.crt` and `client.crt`, with
/// their keys. The folder is removed when this value is dropped.
pub struct Certificates(PathBuf);

impl Certificates {
    /// Makes them, for a server at an IP address.
    pub fn make(folder: &Path, server: IpAddr) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let made = Self(folder.to_owned());
        made.certificate("ca", &[])?;
        let (ca, key) = (made.file("ca.crt"), made.file("ca.key"));
        // rustls refuses a server whose certificate is a CA's.
        let by_ca = ["-CA", &ca, "-CAkey", &key, "-addext", "basicConstraints=critical,CA:FALSE"];
        let name = format!("subjectAltName=IP:{server}");
        made.certificate("server", &[&by_ca[..], &["-addext", &name]].concat())?;
        made.certificate("client", &by_ca)?;
        Ok(made)
    }

    fn certificate(&self, name: &str, args: &[&str]) -> Result<()> {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", &format!("/CN=netclaim-test-{name}")]);
        command.args(["-keyout", &self.file(&format!("{name}.key"))]);
        command.args(["-out", &self.file(&format!("{name}.crt"))]);
        output(command.args(args)).map(drop)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
