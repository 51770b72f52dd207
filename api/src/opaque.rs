//! Decodes opaque parameters, which the API server stores without validation.

use serde_json::Value;

use crate::decode::{decode, parse};
use crate::{API_VERSION, AttachmentConfig, CniConfig, Invalid};

/// The `apiVersion` under which upstream defined `CNIConfig`.
const UPSTREAM_API_VERSION: &str = "cni.networking.x-k8s.io/v1alpha1";

/// One decoded `opaque.parameters`.
#[derive(Debug, Clone, PartialEq)]
pub enum Opaque {
    /// `kind: AttachmentConfig`
    Attachment(AttachmentConfig),
    /// `kind: CNIConfig`
    Cni(CniConfig),
}

impl Opaque {
    /// Decodes the JSON text of `opaque.parameters`, which the API server limits to 10 KiB.
    ///
    /// # Errors
    /// Names the first field that is unknown, repeated, missing or wrong.
    pub fn decode(text: &str) -> Result<Self, Invalid> {
        let first = |errors: Vec<Invalid>| errors.into_iter().next();
        Self::read(&parse(text)?)
            .map_err(|errors| first(errors).unwrap_or_else(|| Invalid::new("", "is invalid")))
    }

    /// Decodes `opaque.parameters`.
    ///
    /// # Errors
    /// Every field that is unknown, missing or wrong.
    pub fn read(parameters: &Value) -> Result<Self, Vec<Invalid>> {
        let Value::Object(mut object) = parameters.clone() else {
            return Err(vec![Invalid::new("", "is not a JSON object")]);
        };
        let mut text_field = |field: &str| match object.remove(field) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(Invalid::new(field, format!("{other} is not a string"))),
            None => Err(Invalid::new(field, format!("is missing: write {API_VERSION:?} and a kind"))),
        };
        let (version, kind) = match (text_field("apiVersion"), text_field("kind")) {
            (Ok(version), Ok(kind)) => (version, kind),
            (version, kind) => return Err([version.err(), kind.err()].into_iter().flatten().collect()),
        };
        let object = Value::Object(object);
        match (version.as_str(), kind.as_str()) {
            (API_VERSION, "AttachmentConfig") => {
                let config: AttachmentConfig = decode(&object)?;
                let problems = config.problems();
                if problems.is_empty() { Ok(Self::Attachment(config)) } else { Err(problems) }
            }
            (API_VERSION, "CNIConfig") => decode(&object).map(Self::Cni),
            (UPSTREAM_API_VERSION, "CNIConfig") => decode(&from_upstream(object)).map(Self::Cni),
            (API_VERSION, _) => {
                let problem = format!("{kind:?} is unknown: use AttachmentConfig or CNIConfig");
                Err(vec![Invalid::new("kind", problem)])
            }
            _ => {
                let problem = format!("{version:?} is unknown: use {API_VERSION:?}");
                Err(vec![Invalid::new("apiVersion", problem)])
            }
        }
    }
}

/// Returns upstream's `CNIConfig` in our words: it has `ifName` for the name of the interface.
fn from_upstream(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut()
        && let Some(name) = fields.remove("ifName")
    {
        fields.insert("interfaceName".to_owned(), name);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(parameters: &str) -> String {
        let text =
            format!(r#"{{"apiVersion":"netclaim.dev/v1alpha1","kind":"AttachmentConfig"{parameters}}}"#);
        Opaque::decode(&text).expect_err(&text).to_string()
    }

    #[test]
    fn errors_name_the_field_and_the_fix() {
        let unknown = error(r#","mtuu":1"#);
        assert!(unknown.contains("unknown field `mtuu`") && unknown.contains("`interfaceName`"), "{unknown}");
        assert_eq!(
            error(r#","ips":["10.0.0.1","10.0.0.300"]"#),
            "ips[1]: \"10.0.0.300\" is not an IP address: write for example 10.20.0.5 or 10.20.0.5/24"
        );
        assert!(error(r#","bandwidth":{"ingres":"1G"}"#).starts_with("bandwidth.ingres: unknown field"));
        assert!(
            error(r#","interfaceName":"eth0""#)
                .starts_with("interfaceName: \"eth0\" is the pod's own interface")
        );
        assert!(
            error(r#","interfaceName":"a","interfaceName":"b""#).contains("`interfaceName` occurs twice")
        );
        assert!(error(r#","args":{"a":"b;c=d"}"#).starts_with("args.a:"));
    }

    #[test]
    fn kind_and_version_are_needed() {
        assert!(
            Opaque::decode("{}").expect_err("no version").to_string().starts_with("apiVersion: is missing")
        );
        let other = r#"{"apiVersion":"netclaim.dev/v1alpha1","kind":"Other"}"#;
        assert!(
            Opaque::decode(other)
                .expect_err("kind")
                .to_string()
                .contains("use AttachmentConfig or CNIConfig")
        );
        assert!(Opaque::decode("[]").is_err());
        let both = Opaque::read(&serde_json::json!({"interfaceName": "a"})).expect_err("neither");
        assert_eq!(both.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["apiVersion", "kind"]);
    }

    #[test]
    fn the_upstream_spelling_of_a_cni_config_is_read() {
        let text = r#"{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNIConfig","ifName":"net1","config":{"type":"macvlan"}}"#;
        assert!(matches!(Opaque::decode(text), Ok(Opaque::Cni(config))
                if config.config["type"] == "macvlan" && config.interface_name.is_some()));
    }
}
