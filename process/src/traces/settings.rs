//! The environment variables of the OpenTelemetry specification
//! ([SDK](https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/),
//! [OTLP](https://opentelemetry.io/docs/specs/otel/protocol/exporter/)).
//!
//! The specification has programs ignore values that they do not understand. Here such a value is an error: a typing mistake would
//! otherwise show as traces that never arrive.

use std::time::Duration;
use std::{fs, io};

use opentelemetry_sdk::trace::{Sampler, ShouldSample};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::queue::Limits;
use super::sampler::Ratio;

/// Before OTLP's own variables, and before those of traces alone, which win.
const OTLP: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];
const TIMEOUT: Duration = Duration::from_secs(10);
/// When a connection is asked whether it lives, while spans are sent.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Why a variable cannot be used. Header values are in none of the texts.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It has a value that makes no sense.
    #[error("environment variable {variable}: cannot use {value:?}: {wanted}")]
    Invalid {
        /// Its name.
        variable: String,
        /// Its value.
        value: String,
        /// What to write.
        wanted: &'static str,
    },
    /// It has a value that may be secret.
    #[error("environment variable {variable}: cannot use entry {place}, whose value is not shown: {wanted}")]
    Secret {
        /// Its name.
        variable: String,
        /// Which of its entries, from 1.
        place: usize,
        /// What to write.
        wanted: &'static str,
    },
    /// The file that it names cannot be read.
    #[error("environment variable {variable}: cannot read {path}")]
    File {
        /// Its name.
        variable: String,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The certificates cannot be used.
    #[error(
        "cannot use the TLS certificates of OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY, or those of the system"
    )]
    Tls(#[source] tonic::transport::Error),
}

/// What the environment says.
#[derive(Debug)]
pub(super) struct Settings {
    /// Where spans are sent.
    pub(super) endpoint: Endpoint,
    /// The same for the log.
    pub(super) address: String,
    pub(super) sampler: Box<dyn ShouldSample>,
    pub(super) queue: Limits,
}

/// A way to look up variables.
struct Env<'a>(&'a dyn Fn(&str) -> Option<String>);

/// A variable that is set.
struct Variable {
    name: String,
    value: String,
}

impl Variable {
    fn invalid(self, wanted: &'static str) -> SettingsError {
        SettingsError::Invalid { variable: self.name, value: self.value, wanted }
    }

    fn number(self, least: u64, wanted: &'static str) -> Result<u64, SettingsError> {
        match self.value.parse() {
            Ok(number) if number >= least => Ok(number),
            _ => Err(self.invalid(wanted)),
        }
    }

    fn millis(self) -> Result<Duration, SettingsError> {
        self.number(1, "use milliseconds, from 1").map(Duration::from_millis)
    }

    fn count(self) -> Result<usize, SettingsError> {
        let number = self.number(1, "use a number of spans, from 1")?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    /// Reads a file in PEM, which has this kind of entry. Without one, rustls would trust nobody.
    fn pem(self, kind: &str, wanted: &'static str) -> Result<String, SettingsError> {
        let text = self.read()?;
        if text.contains(&format!("-----BEGIN {kind}-----")) { Ok(text) } else { Err(self.invalid(wanted)) }
    }

    fn certificates(self) -> Result<String, SettingsError> {
        self.pem("CERTIFICATE", "use a file with certificates in PEM")
    }

    fn read(&self) -> Result<String, SettingsError> {
        let failed =
            |source| SettingsError::File { variable: self.name.clone(), path: self.value.clone(), source };
        fs::read_to_string(&self.value).map_err(failed)
    }
}

impl Env<'_> {
    /// Returns a variable that is set. An empty one counts as unset.
    fn get(&self, name: &str) -> Option<Variable> {
        let value = (self.0)(name)?.trim().to_owned();
        (!value.is_empty()).then(|| Variable { name: name.to_owned(), value })
    }

    /// Returns a variable of OTLP: that of traces, or the common one.
    fn otlp(&self, name: &str) -> Option<Variable> {
        OTLP.iter().find_map(|prefix| self.get(&format!("{prefix}{name}")))
    }
}

impl Settings {
    /// Reads the variables. `None` if they switch traces off, or name no endpoint.
    pub(super) fn read(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, SettingsError> {
        let env = Env(env);
        if let Some(disabled) = env.get("OTEL_SDK_DISABLED") {
            match disabled.value.to_ascii_lowercase().as_str() {
                "true" => return Ok(None),
                "false" => {}
                _ => return Err(disabled.invalid("use true or false")),
            }
        }
        if let Some(exporter) = env.get("OTEL_TRACES_EXPORTER") {
            match exporter.value.as_str() {
                "none" => return Ok(None),
                "otlp" => {}
                _ => return Err(exporter.invalid("use otlp or none")),
            }
        }
        let Some(endpoint) = env.otlp("ENDPOINT") else { return Ok(None) };
        if let Some(protocol) = env.otlp("PROTOCOL").filter(|protocol| protocol.value != "grpc") {
            return Err(protocol.invalid("use grpc, and the collector's port for it, mostly 4317"));
        }
        if let Some(compression) = env.otlp("COMPRESSION").filter(|compression| compression.value != "none") {
            return Err(compression.invalid("use none"));
        }
        if let Some(headers) = env.otlp("HEADERS") {
            check_headers(&headers)?;
        }
        if let Some(attributes) = env.get("OTEL_RESOURCE_ATTRIBUTES") {
            let mut entries = attributes.value.split(',').filter(|entry| !entry.trim().is_empty());
            if !entries.all(|entry| entry.split_once('=').is_some_and(|(name, _)| !name.trim().is_empty())) {
                return Err(attributes.invalid("use NAME=VALUE, separated by commas"));
            }
        }
        let (endpoint, address) = connection(&env, endpoint)?;
        Ok(Some(Self { endpoint, address, sampler: sampler(&env)?, queue: queue(&env)? }))
    }
}

/// How to reach the collector, and its address for the log.
fn connection(env: &Env<'_>, endpoint: Variable) -> Result<(Endpoint, String), SettingsError> {
    const WANTED: &str =
        "use http://HOST:4317, or https://HOST:4317 for TLS, with an IPv6 address in brackets";
    if endpoint.value.contains('@') {
        let wanted = "put no user into the address, but a header into OTEL_EXPORTER_OTLP_HEADERS";
        return Err(SettingsError::Secret { variable: endpoint.name, place: 1, wanted });
    }
    // Others, such as `unix:`, have a meaning to tonic that nobody has tried.
    let scheme =
        ["http", "https"].into_iter().find(|scheme| endpoint.value.starts_with(&format!("{scheme}://")));
    let (Some(scheme), Ok(parsed)) = (scheme, Endpoint::from_shared(endpoint.value.clone())) else {
        return Err(endpoint.invalid(WANTED));
    };
    let uri = parsed.uri().clone();
    let Some(authority) = uri.authority() else {
        return Err(endpoint.invalid(WANTED));
    };
    // A path is for OTLP over HTTP: gRPC has its own.
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(
            endpoint.invalid("use an address without a path, of the collector's port for gRPC, mostly 4317")
        );
    }
    let address = format!("{scheme}://{authority}");
    let timeout = env.otlp("TIMEOUT").map_or(Ok(TIMEOUT), Variable::millis)?;
    let parsed = parsed.timeout(timeout).connect_timeout(timeout).http2_keep_alive_interval(KEEP_ALIVE);
    if scheme == "http" {
        return Ok((parsed, address));
    }
    let tls = match env.otlp("CERTIFICATE") {
        Some(file) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(file.certificates()?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    let tls = match (env.otlp("CLIENT_CERTIFICATE"), env.otlp("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => {
            tls.identity(Identity::from_pem(certificate.certificates()?, key.read()?))
        }
        (None, None) => tls,
        (Some(alone), None) | (None, Some(alone)) => {
            return Err(alone.invalid(
                "set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY",
            ));
        }
    };
    Ok((parsed.tls_config(tls).map_err(SettingsError::Tls)?, address))
}

/// The exporter leaves out what it cannot use of the headers.
fn check_headers(headers: &Variable) -> Result<(), SettingsError> {
    let entries = headers.value.split(',').zip(1..).filter(|(entry, _)| !entry.trim().is_empty());
    for (entry, place) in entries {
        let (name, value) = entry.split_once('=').unwrap_or_default();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = !name.trim().is_empty() && name.trim().bytes().all(is_token);
        if !is_name || !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            let wanted = "use NAME=VALUE, separated by commas";
            return Err(SettingsError::Secret { variable: headers.name.clone(), place, wanted });
        }
    }
    Ok(())
}

fn sampler(env: &Env<'_>) -> Result<Box<dyn ShouldSample>, SettingsError> {
    let share = match env.get("OTEL_TRACES_SAMPLER_ARG") {
        None => 1.0,
        Some(share) => match share.value.parse() {
            Ok(number) if (0.0..=1.0).contains(&number) => number,
            _ => return Err(share.invalid("use a share of the traces, from 0 to 1, such as 0.1")),
        },
    };
    let Some(sampler) = env.get("OTEL_TRACES_SAMPLER") else {
        return Ok(Sampler::ParentBased(Box::new(Sampler::AlwaysOn)).into());
    };
    let (is_by_parent, root) = match sampler.value.strip_prefix("parentbased_") {
        Some(root) => (true, root),
        None => (false, sampler.value.as_str()),
    };
    let root: Box<dyn ShouldSample> = match root {
        "always_on" => Sampler::AlwaysOn.into(),
        "always_off" => Sampler::AlwaysOff.into(),
        "traceidratio" => Ratio::new(share).into(),
        _ => {
            return Err(sampler
                .invalid("use always_on, always_off or traceidratio, or one of them after parentbased_"));
        }
    };
    Ok(if is_by_parent { Sampler::ParentBased(root).into() } else { root })
}

fn queue(env: &Env<'_>) -> Result<Limits, SettingsError> {
    let size = env.get("OTEL_BSP_MAX_QUEUE_SIZE").map_or(Ok(2048), Variable::count)?;
    let batch = env.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE").map_or(Ok(512), Variable::count)?;
    let delay = env.get("OTEL_BSP_SCHEDULE_DELAY").map_or(Ok(Duration::from_secs(5)), Variable::millis)?;
    let timeout = env.get("OTEL_BSP_EXPORT_TIMEOUT").map_or(Ok(Duration::from_secs(30)), Variable::millis)?;
    // The channel reserves nothing; the bound keeps a typing mistake from using up the memory limit.
    const MOST: usize = 1 << 20;
    Ok(Limits { size: size.min(MOST), batch: batch.min(size), delay, timeout })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::error::Error as _;

    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        // A TLS configuration needs a provider, as the program has one.
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Settings::read(&|name| variables.get(name).cloned())
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        let all: Vec<_> = [ENDPOINT].into_iter().chain(variables.iter().copied()).collect();
        read(&all).unwrap_err().to_string()
    }

    #[test]
    fn traces_are_off_without_an_endpoint_and_where_they_are_switched_off() {
        let off: [&[(&str, &str)]; 5] = [
            &[],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
            &[("OTEL_TRACES_SAMPLER", "always_on")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
        ];
        for variables in off {
            assert!(read(variables).unwrap().is_none(), "{variables:?}");
        }
        for more in [("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "otlp")] {
            assert!(read(&[ENDPOINT, more]).unwrap().is_some(), "{more:?}");
        }
    }

    #[test]
    fn variables_of_traces_win_over_the_common_ones() {
        let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317/");
        let settings = read(&[ENDPOINT, of_traces]).unwrap().unwrap();
        assert_eq!(settings.address, "http://traces:4317");
        assert_eq!(settings.endpoint.uri().host(), Some("traces"));
    }

    #[test]
    fn an_ipv6_address_is_in_brackets() {
        for address in ["http://[fd00::7]:4317", "https://[fd00::7]:4317"] {
            let settings = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", address)]).unwrap().unwrap();
            assert_eq!(settings.address, address);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_specification() {
        let settings = read(&[ENDPOINT]).unwrap().unwrap();
        let (delay, timeout) = (Duration::from_secs(5), Duration::from_secs(30));
        assert_eq!(settings.queue, Limits { size: 2048, batch: 512, delay, timeout });
        assert!(
            format!("{:?}", settings.sampler).starts_with("ParentBased(AlwaysOn"),
            "{:?}",
            settings.sampler
        );
    }

    #[test]
    fn every_sampler_of_the_specification_is_known() {
        for name in ["always_on", "always_off", "traceidratio"] {
            for name in [name.to_owned(), format!("parentbased_{name}")] {
                let sampler = ("OTEL_TRACES_SAMPLER", name.as_str());
                let settings =
                    read(&[ENDPOINT, sampler, ("OTEL_TRACES_SAMPLER_ARG", "0.25")]).unwrap().unwrap();
                let text = format!("{:?}", settings.sampler);
                assert_eq!(text.starts_with("ParentBased"), name.starts_with("parentbased"), "{text}");
                assert_eq!(text.contains("Ratio"), name.contains("ratio"), "{text}");
            }
        }
    }

    #[test]
    fn a_value_that_cannot_be_used_is_refused_with_what_to_write() {
        for (name, value, wanted) in [
            ("OTEL_SDK_DISABLED", "yes", "use true or false"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "use otlp or none"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "use http://HOST:4317"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "unix:///run/collector", "use http://HOST:4317"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://fd00::7:4317", "an IPv6 address in brackets"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/v1/traces", "without a path"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "use grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip", "use none"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "use milliseconds"),
            ("OTEL_TRACES_SAMPLER", "sometimes", "use always_on"),
            ("OTEL_TRACES_SAMPLER_ARG", "10", "from 0 to 1"),
            ("OTEL_TRACES_SAMPLER_ARG", "NaN", "from 0 to 1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "cluster", "use NAME=VALUE"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "use a number of spans"),
        ] {
            let text = refusal(&[(name, value)]);
            assert!(text.contains(name) && text.contains(value) && text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn no_error_shows_what_a_header_or_an_address_keeps_secret() {
        for headers in ["api-key: s3cret", "a=b,=s3cret", "a b=s3cret", "a=s3cret\u{7f}"] {
            let text = refusal(&[("OTEL_EXPORTER_OTLP_HEADERS", headers)]);
            assert!(text.contains("OTEL_EXPORTER_OTLP_HEADERS") && !text.contains("s3cret"), "{text}");
        }
        let text = refusal(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:s3cret@c:4317")]);
        assert!(text.contains("OTEL_EXPORTER_OTLP_HEADERS") && !text.contains("s3cret"), "{text}");
        let good =
            [ENDPOINT, ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret,x-scope-orgid=a")];
        let settings = format!("{:?}", read(&good).unwrap());
        assert!(!settings.contains("s3cret"), "{settings}");
    }

    #[test]
    fn a_certificate_that_cannot_be_used_is_refused_with_its_file() {
        let https = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317");
        let error = read(&[https, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ca.pem") && error.source().is_some(), "{error}");
        let error = read(&[https, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "Cargo.toml")]).unwrap_err();
        assert!(error.to_string().contains("use a file with certificates in PEM"), "{error}");
        let error = read(&[https, ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key")]).unwrap_err();
        assert!(error.to_string().contains("set both"), "{error}");
    }
}
