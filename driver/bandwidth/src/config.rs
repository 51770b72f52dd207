//! The plugin's configuration.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::limits::{Limit, Limits};
use crate::version::{self, NEWEST};

/// The keys of rates and bursts.
const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
/// Keys of a plugin's object that the specification or the runtime defines.
const PROTOCOL: [&str; 9] =
    ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult", "ipam", "dns"];
const RESERVED_PREFIX: &str = "cni.dev/";

/// A parsed configuration.
#[derive(Debug)]
pub(crate) struct Config {
    /// Version of the CNI specification.
    pub(crate) version: String,
    pub(crate) limits: Limits,
    /// The previous result, unchanged to the byte if it has a version.
    pub(crate) prev_result: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rates {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
}

#[derive(Deserialize)]
struct RuntimeConfig {
    bandwidth: Option<Rates>,
}

type Object = BTreeMap<String, Box<RawValue>>;

/// Reads only the version of a configuration, which may be otherwise invalid.
pub(crate) fn version_of(json: &[u8]) -> Option<String> {
    let object: Object = serde_json::from_slice(json).ok()?;
    field(&object, "cniVersion").ok()?
}

impl Config {
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Failure> {
        let object: Object = serde_json::from_slice(json).map_err(Failure::Decode)?;
        // Without a version it is CNI 0.1.0 (specification, "Version considerations").
        let version: String = field(&object, "cniVersion")?.unwrap_or_else(|| "0.1.0".to_owned());
        if !version::SUPPORTED.contains(&version.as_str()) {
            return Err(Failure::unsupported(&version));
        }
        let known =
            |key: &str| KEYS.contains(&key) || PROTOCOL.contains(&key) || key.starts_with(RESERVED_PREFIX);
        if let Some(key) = object.keys().find(|key| !known(key)) {
            return Err(Failure::UnknownKey { key: key.clone(), known: &KEYS });
        }
        let capability = field::<RuntimeConfig>(&object, "runtimeConfig")?;
        let capability = capability.and_then(|config| config.bandwidth).unwrap_or_default();
        // The plugin's own keys count for a direction that the capability does not set.
        let limit = |direction: &str, (rate, burst): (Option<u64>, Option<u64>)| match (rate, burst) {
            (None, None) => {
                let own = |key: &str| field(&object, &format!("{direction}{key}"));
                Limit::new(direction, own("Rate")?, own("Burst")?)
            }
            (rate, burst) => Limit::new(direction, rate, burst),
        };
        let limits = Limits {
            ingress: limit("ingress", (capability.ingress_rate, capability.ingress_burst))?,
            egress: limit("egress", (capability.egress_rate, capability.egress_burst))?,
        };
        let prev_result = object.get("prevResult").map(|raw| versioned(raw, &version)).transpose()?;
        Ok(Self { version, limits, prev_result })
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

    fn parse(config: &str) -> Result<Config, String> {
        let json = format!(r#"{{"cniVersion": "1.1.0", {config}}}"#);
        Config::parse(json.as_bytes()).map_err(|failure| failure.to_string())
    }

    fn limit(direction: &str, rate: u64, burst: Option<u64>) -> Option<Limit> {
        Limit::new(direction, Some(rate), burst).expect("is valid")
    }

    #[test]
    fn the_plugins_own_keys_count_for_a_direction_that_the_runtime_does_not_set() {
        let config = parse(
            r#""ingressRate": 80, "egressRate": 80, "egressBurst": 80,
               "runtimeConfig": {"bandwidth": {"egressRate": 160, "egressBurst": 8}, "mac": "x"}"#,
        );
        let limits = config.expect("parses").limits;
        assert_eq!(limits.ingress, limit("ingress", 80, None));
        assert_eq!(limits.egress, limit("egress", 160, Some(8)));
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
    fn zero_or_null_does_not_limit() {
        for config in [
            r#""name": "n""#,
            r#""egressRate": 0, "egressBurst": 0"#,
            r#""runtimeConfig": null, "egressRate": null"#,
        ] {
            assert_eq!(parse(config).expect("parses").limits, Limits::default(), "{config}");
        }
    }

    #[test]
    fn the_previous_result_is_kept_to_the_byte() {
        let config = parse(r#""prevResult": {"b" : 1.0, "a":[ ], "cniVersion":"1.1.0"}"#).expect("parses");
        assert_eq!(config.prev_result.as_deref(), Some(r#"{"b" : 1.0, "a":[ ], "cniVersion":"1.1.0"}"#));
    }
}
