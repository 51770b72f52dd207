//! The configuration, and the token buckets that come of it.
//!
//! A burst that is not given is what the rate yields in 4 ms, the beat of a slow kernel timer, but room for one packet
//! of 64 KiB that segmentation offload leaves whole. One that is given counts, but never less than a full frame, below
//! which nothing would pass; what offload leaves whole is taken apart then. What does not pass at once waits up to 25 ms
//! longer than the burst takes, and is dropped then, as with the reference plugin.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::{NEWEST, VERSIONS};

/// The keys of rates and bursts.
pub(crate) const KEYS: [&str; 4] = ["ingressRate", "ingressBurst", "egressRate", "egressBurst"];
/// Keys of a plugin's object that are the runtime's or the specification's.
const PROTOCOL: [&str; 9] =
    ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult", "ipam", "dns"];
const RESERVED_PREFIX: &str = "cni.dev/";

/// How long a packet waits at most once the bucket is empty, besides the burst's own time.
const LATENCY_MS: u64 = 25;
/// Bursts last this part of a second by default.
const BURSTS_PER_SECOND: u64 = 250;
/// Ethernet header with a VLAN tag.
const FRAME_HEADER: u64 = 18;
/// The longest packet before segmentation, with its header.
const OFFLOADED: u64 = 64 * 1024 + FRAME_HEADER;

/// What the runtime asks for.
#[derive(Debug)]
pub(crate) struct Config {
    /// Version of the CNI specification.
    pub(crate) version: String,
    pub(crate) limits: Limits,
    /// As it came, to the byte.
    pub(crate) prev_result: Option<String>,
}

/// The limits of an interface; a direction without one is not touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of what the container receives.
    pub(crate) ingress: Option<Limit>,
    /// Of what it sends.
    pub(crate) egress: Option<Limit>,
}

/// The limit of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bytes per second, not 0.
    rate: u64,
    /// Bytes.
    burst: Option<u32>,
}

/// A token bucket as the kernel is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// Bytes that pass at once.
    pub(crate) burst: u32,
    /// Bytes that wait.
    pub(crate) limit: u32,
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

/// The version of a configuration of which nothing else is known.
pub(crate) fn version(json: &[u8]) -> Option<String> {
    let object: Object = serde_json::from_slice(json).ok()?;
    field(&object, "cniVersion").ok()?
}

impl Config {
    pub(crate) fn parse(json: &[u8]) -> Result<Self, Failure> {
        let object: Object = serde_json::from_slice(json).map_err(Failure::Decode)?;
        // What has no version is of CNI 0.1.0 (specification, "Version considerations").
        let version: String = field(&object, "cniVersion")?.unwrap_or_else(|| "0.1.0".to_owned());
        if !VERSIONS.contains(&version.as_str()) {
            return Err(Failure::unspoken(&version));
        }
        let known =
            |key: &str| KEYS.contains(&key) || PROTOCOL.contains(&key) || key.starts_with(RESERVED_PREFIX);
        if let Some(key) = object.keys().find(|key| !known(key)) {
            return Err(Failure::UnknownKey { key: key.clone() });
        }
        let asked = field::<RuntimeConfig>(&object, "runtimeConfig")?;
        let asked = asked.and_then(|config| config.bandwidth).unwrap_or_default();
        // What is written is for a direction of which the runtime says nothing.
        let limit = |direction: &str, (rate, burst): (Option<u64>, Option<u64>)| match (rate, burst) {
            (None, None) => {
                let written = |what: &str| field(&object, &format!("{direction}{what}"));
                Limit::new(direction, written("Rate")?, written("Burst")?)
            }
            (rate, burst) => Limit::new(direction, rate, burst),
        };
        let limits = Limits {
            ingress: limit("ingress", (asked.ingress_rate, asked.ingress_burst))?,
            egress: limit("egress", (asked.egress_rate, asked.egress_burst))?,
        };
        let prev_result = object.get("prevResult").map(|raw| raw.get().to_owned());
        if prev_result.as_ref().is_some_and(|raw| !raw.starts_with('{')) {
            return Err(Failure::config("prevResult", "is no object"));
        }
        Ok(Self { version, limits, prev_result })
    }

    /// Refuses an operation that is younger than the configuration's version.
    pub(crate) fn speaks(&self, since: &str, operation: &str) -> Result<(), Failure> {
        let age = |version: &str| VERSIONS.iter().position(|known| *known == version);
        if age(&self.version) >= age(since) {
            return Ok(());
        }
        let version = &self.version;
        Err(Failure::Version(format!(
            "CNI {version} has no {operation}: it came with {since}; newest is {NEWEST}"
        )))
    }
}

/// A member of the configuration; `null` counts as missing.
fn field<T: DeserializeOwned>(object: &Object, key: &str) -> Result<Option<T>, Failure> {
    let Some(raw) = object.get(key) else { return Ok(None) };
    serde_json::from_str(raw.get()).map_err(|error| Failure::config(key, error.to_string()))
}

impl Limit {
    /// From bit/s and bits; 0 is none.
    fn new(direction: &str, rate: Option<u64>, burst: Option<u64>) -> Result<Option<Self>, Failure> {
        let set = |value: Option<u64>| value.filter(|value| *value > 0);
        let (rate, burst) = match (set(rate), set(burst)) {
            (Some(rate), burst) => (rate, burst),
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let problem = format!("has no effect without {direction}Rate: write both, or none");
                return Err(Failure::config(format!("{direction}Burst"), problem));
            }
        };
        if rate < 8 {
            let problem = format!("{rate} bit/s is less than a byte per second: write at least 8");
            return Err(Failure::config(format!("{direction}Rate"), problem));
        }
        let burst = burst.map(|bits| {
            u32::try_from(bits.div_ceil(8)).map_err(|_| {
                let problem = format!("{bits} bits are too much: write at most {}", u64::from(u32::MAX) * 8);
                Failure::config(format!("{direction}Burst"), problem)
            })
        });
        Ok(Some(Self { rate: rate / 8, burst: burst.transpose()? }))
    }

    /// The bucket for an interface with this MTU.
    pub(crate) fn bucket(self, mtu: u32) -> Bucket {
        let frame = u64::from(mtu) + FRAME_HEADER;
        let burst = match self.burst {
            Some(burst) => u64::from(burst).max(frame),
            // Whatever the MTU, which may change before CHECK.
            None => (self.rate / BURSTS_PER_SECOND).max(OFFLOADED),
        };
        let waiting =
            u64::try_from(u128::from(self.rate) * u128::from(LATENCY_MS) / 1000).unwrap_or(u64::MAX);
        let bytes = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Bucket { rate: self.rate, burst: bytes(burst), limit: bytes(waiting.saturating_add(burst)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: &str) -> Result<Config, String> {
        let json = format!(r#"{{"cniVersion": "1.1.0", {config}}}"#);
        Config::parse(json.as_bytes()).map_err(|failure| failure.to_string())
    }

    fn bucket(config: &str) -> Bucket {
        parse(config).expect("parses").limits.egress.expect("a limit").bucket(1500)
    }

    #[test]
    fn what_is_written_is_for_a_direction_of_which_the_runtime_says_nothing() {
        let config = parse(
            r#""ingressRate": 80, "egressRate": 80, "egressBurst": 80,
               "runtimeConfig": {"bandwidth": {"egressRate": 160, "egressBurst": 8}, "mac": "x"}"#,
        );
        let limits = config.expect("parses").limits;
        assert_eq!(limits.ingress, Some(Limit { rate: 10, burst: None }));
        assert_eq!(limits.egress, Some(Limit { rate: 20, burst: Some(1) }));
    }

    #[test]
    fn nothing_is_limited_by_zero_or_null() {
        for config in [
            r#""name": "n""#,
            r#""egressRate": 0, "egressBurst": 0"#,
            r#""runtimeConfig": null, "egressRate": null"#,
        ] {
            assert_eq!(parse(config).expect("parses").limits, Limits::default(), "{config}");
        }
    }

    #[test]
    fn a_burst_lasts_four_milliseconds_and_has_room_for_an_offloaded_packet() {
        assert_eq!(
            bucket(r#""egressRate": 10000000000"#),
            Bucket { rate: 1_250_000_000, burst: 5_000_000, limit: 36_250_000 }
        );
        assert_eq!(
            bucket(r#""egressRate": 1000000"#),
            Bucket { rate: 125_000, burst: 65_554, limit: 68_679 }
        );
    }

    #[test]
    fn a_burst_that_is_given_counts_but_a_frame_passes_always() {
        assert_eq!(bucket(r#""egressRate": 8000, "egressBurst": 80000"#).burst, 10_000);
        assert_eq!(bucket(r#""egressRate": 8000, "egressBurst": 8"#).burst, 1518);
    }

    #[test]
    fn no_rate_overflows_what_the_kernel_counts_in() {
        let most = bucket(r#""egressRate": 18446744073709551615"#);
        assert_eq!(most, Bucket { rate: u64::MAX / 8, burst: u32::MAX, limit: u32::MAX });
    }

    #[test]
    fn the_previous_result_is_kept_to_the_byte() {
        let config = parse(r#""prevResult": {"b" : 1.0, "a":[ ]}"#).expect("parses");
        assert_eq!(config.prev_result.as_deref(), Some(r#"{"b" : 1.0, "a":[ ]}"#));
    }
}
