//! The plugin's configuration.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::version::{self, NEWEST};

/// Keys of a plugin's object that the specification or the runtime defines.
const PROTOCOL: [&str; 9] =
    ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult", "ipam", "dns"];
const RESERVED_PREFIX: &str = "cni.dev/";

/// The members of a JSON object, each unchanged to the byte.
pub type Object = BTreeMap<String, Box<RawValue>>;

/// A configuration; only the part of the protocol has been looked at.
#[derive(Debug)]
pub struct Config {
    /// Version of the CNI specification.
    pub version: String,
    /// The previous result, unchanged to the byte if it has a version.
    pub prev_result: Option<String>,
    object: Object,
}

/// Reads only the version of a configuration, which may be otherwise invalid.
pub(crate) fn version_of(json: &[u8]) -> Option<String> {
    let object: Object = serde_json::from_slice(json).ok()?;
    field(&object, "cniVersion").ok()?
}

impl Config {
    /// Reads a configuration, whatever its other keys are.
    pub fn parse(json: &[u8]) -> Result<Self, Failure> {
        let object: Object = serde_json::from_slice(json).map_err(Failure::Decode)?;
        // Without a version it is CNI 0.1.0 (specification, "Version considerations").
        let version: String = field(&object, "cniVersion")?.unwrap_or_else(|| "0.1.0".to_owned());
        if !version::SUPPORTED.contains(&version.as_str()) {
            return Err(Failure::unsupported(&version));
        }
        let prev_result = object.get("prevResult").map(|raw| versioned(raw, &version)).transpose()?;
        Ok(Self { version, prev_result, object })
    }

    /// Reads a member; `null` counts as missing.
    pub fn field<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Failure> {
        field(&self.object, key)
    }

    /// Returns the previous result, which a chained plugin needs.
    pub fn require_result(&self) -> Result<&str, Failure> {
        self.prev_result.as_deref().ok_or_else(|| {
            let problem = "is missing: put the plugin that makes the interface before this one";
            Failure::config("prevResult", problem)
        })
    }

    /// Refuses keys that are neither the protocol's nor among `keys`, the plugin's own.
    pub(crate) fn knows(&self, keys: &'static [&'static str]) -> Result<(), Failure> {
        let known =
            |key: &str| keys.contains(&key) || PROTOCOL.contains(&key) || key.starts_with(RESERVED_PREFIX);
        match self.object.keys().find(|key| !known(key)) {
            Some(key) => Err(Failure::UnknownKey { key: key.clone(), known: keys }),
            None => Ok(()),
        }
    }

    /// Refuses an operation that came with a later version than the configuration's.
    pub(crate) fn has_operation(&self, since: &str, operation: &str) -> Result<(), Failure> {
        let age = |version: &str| version::SUPPORTED.iter().position(|known| *known == version);
        if age(&self.version) >= age(since) {
            return Ok(());
        }
        let version = &self.version;
        Err(Failure::Version(format!(
            "CNI {version} has no {operation}: it came with {since}; newest is {NEWEST}"
        )))
    }
}

/// Returns a previous result, which runtimes may pass without a version: the answer always has one.
fn versioned(raw: &RawValue, version: &str) -> Result<String, Failure> {
    if !raw.get().starts_with('{') {
        return Err(Failure::config("prevResult", "is not an object"));
    }
    let mut result: Object =
        serde_json::from_str(raw.get()).map_err(|error| Failure::config("prevResult", error.to_string()))?;
    if field::<String>(&result, "cniVersion")?.is_some() {
        return Ok(raw.get().to_owned());
    }
    let written = serde_json::value::to_raw_value(version).and_then(|version| {
        result.insert("cniVersion".to_owned(), version);
        serde_json::to_string(&result)
    });
    written.map_err(|error| Failure::config("prevResult", error.to_string()))
}

/// Reads a member of the configuration; `null` counts as missing.
fn field<T: DeserializeOwned>(object: &Object, key: &str) -> Result<Option<T>, Failure> {
    let Some(raw) = object.get(key) else { return Ok(None) };
    serde_json::from_str(raw.get()).map_err(|error| Failure::config(key, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: &str) -> Result<Config, Failure> {
        Config::parse(format!(r#"{{"cniVersion": "1.1.0", {config}}}"#).as_bytes())
    }

    #[test]
    fn a_previous_result_without_a_version_gets_the_configurations() {
        let previous =
            |result: &str| parse(&format!(r#""prevResult": {result}"#)).expect("parses").prev_result.unwrap();
        for result in ["{}", r#"{"interfaces": [], "x": 1.50}"#, r#"{"cniVersion": null, "ips": []}"#] {
            let answer: serde_json::Value = serde_json::from_str(&previous(result)).unwrap();
            assert_eq!(answer["cniVersion"], "1.1.0", "{answer}");
            let mut rest: serde_json::Value = serde_json::from_str(result).unwrap();
            rest["cniVersion"] = answer["cniVersion"].clone();
            assert_eq!(answer, rest, "the rest is unchanged");
        }
    }

    #[test]
    fn the_previous_result_is_kept_to_the_byte() {
        let config = parse(r#""prevResult": {"b" : 1.0, "a":[ ], "cniVersion":"1.1.0"}"#).expect("parses");
        assert_eq!(config.prev_result.as_deref(), Some(r#"{"b" : 1.0, "a":[ ], "cniVersion":"1.1.0"}"#));
    }
}
