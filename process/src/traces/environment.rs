//! What this program reads of OpenTelemetry's environment variables itself. The SDK reads the others:
//! [the SDK's](https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/) and
//! [those of OTLP](https://opentelemetry.io/docs/specs/otel/protocol/exporter/).

use std::fs;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::TracesError;

/// The variables of OTLP for all signals, and those for traces alone, which win.
const OTLP: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];

/// Looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns a variable of OTLP. An empty one counts as unset.
fn otlp(env: Lookup<'_>, name: &str) -> Option<String> {
    OTLP.iter().find_map(|prefix| env(&format!("{prefix}{name}")).filter(|value| !value.trim().is_empty()))
}

/// Reports whether there is a collector, and traces are not switched off.
pub(super) fn is_enabled(env: Lookup<'_>) -> bool {
    let has = |name: &str, value: &str| env(name).is_some_and(|text| text.trim().eq_ignore_ascii_case(value));
    let is_off = has("OTEL_SDK_DISABLED", "true") || has("OTEL_TRACES_EXPORTER", "none");
    !is_off && otlp(env, "ENDPOINT").is_some()
}

/// Whether the address of the collector has a user or a password in it.
pub(super) fn has_credentials(env: Lookup<'_>) -> bool {
    otlp(env, "ENDPOINT").is_some_and(|endpoint| endpoint.contains('@'))
}

/// Returns the TLS of the connection, which the SDK does not configure. `None` for an endpoint without TLS.
pub(super) fn tls(env: Lookup<'_>) -> Result<Option<ClientTlsConfig>, TracesError> {
    if otlp(env, "ENDPOINT").is_some_and(|endpoint| endpoint.starts_with("http://")) {
        return Ok(None);
    }
    let file = |name: &str| {
        let read = |path: String| fs::read(&path).map_err(|source| TracesError::File { path, source });
        otlp(env, name).map(read).transpose()
    };
    let tls = match file("CERTIFICATE")? {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    Ok(Some(match (file("CLIENT_CERTIFICATE")?, file("CLIENT_KEY")?) {
        (Some(certificate), Some(key)) => tls.identity(Identity::from_pem(certificate, key)),
        _ => tls,
    }))
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
    const HTTPS: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4317");

    fn lookup<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        move |name| value(name).map(str::to_owned)
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
            assert!(!is_enabled(&lookup(variables)), "{variables:?}");
        }
        for more in [("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "otlp")] {
            assert!(is_enabled(&lookup(&[ENDPOINT, more])), "{more:?}");
        }
        assert!(is_enabled(&lookup(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317")])));
    }

    #[test]
    fn an_endpoint_with_a_password_is_refused() {
        let of_user = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://me:secret@collector:4317")];
        assert!(has_credentials(&lookup(&of_user)));
        assert!(!has_credentials(&lookup(&[ENDPOINT])));
    }

    #[test]
    fn only_an_endpoint_of_https_has_tls() {
        assert!(tls(&lookup(&[ENDPOINT])).unwrap().is_none());
        assert!(tls(&lookup(&[HTTPS])).unwrap().is_some());
    }

    #[test]
    fn a_certificate_that_cannot_be_read_is_refused_with_its_file() {
        let ca = [HTTPS, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem")];
        let error = tls(&lookup(&ca)).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ca.pem") && error.source().is_some(), "{error}");
    }
}
