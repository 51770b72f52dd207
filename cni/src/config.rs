//! Network configurations (specification, section 1), parsed from JSON and kept byte for byte.
//!
//! A [`NetworkList`] always has a valid name, a supported version and at least one plugin with a valid type.
//! Plugins are not loaded from files beside the configuration, so `loadOnlyInlinedPlugins` is checked and
//! otherwise has no effect.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{self, Object};
use crate::keys::{self, is_reserved, member};
use crate::names::{ListName, NameError, PluginType};
use crate::version::{self, SpecVersion, VersionError};

/// A network configuration list.
///
/// Serialises as the JSON it was parsed from, through [`RawValue`]: use `serde_json`, and no flattened or
/// internally tagged container around it.
#[derive(Clone, Debug)]
pub struct NetworkList {
    name: ListName,
    versions: BTreeSet<SpecVersion>,
    version: SpecVersion,
    disable_check: bool,
    disable_gc: bool,
    sockets: Option<BTreeSet<PluginType>>,
    first: PluginConf,
    rest: Vec<PluginConf>,
    raw: Box<RawValue>,
}

/// One plugin of a [`NetworkList`].
#[derive(Clone, Debug)]
pub struct PluginConf {
    plugin_type: PluginType,
    ipam: Option<PluginType>,
    capabilities: BTreeSet<String>,
    object: Object,
}

/// A network configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("CNI configuration is invalid at `{pointer}`")]
pub struct ConfError {
    /// JSON pointer (RFC 6901) of the faulty value; `/` alone stands for the whole document.
    pub pointer: String,
    /// What is wrong there.
    #[source]
    pub problem: ConfProblem,
}

/// What is wrong with a value of a network configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfProblem {
    /// The text is not JSON, or an object has the same key twice.
    #[error("cannot be read as JSON without duplicate keys")]
    Json(#[source] serde_json::Error),
    /// A required key is not there.
    #[error("is required")]
    Missing,
    /// The value has the wrong JSON type.
    #[error("must be {expected}, not {found}")]
    Type {
        /// The type that the specification requires.
        expected: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// The list of plugins is empty.
    #[error("must name at least one plugin")]
    NoPlugins,
    /// The name or type is not allowed.
    #[error("is not an allowed name")]
    Name(#[from] NameError),
    /// The version is not a released one.
    #[error("is not a supported version")]
    Version(#[from] VersionError),
    /// None of `cniVersions` is a version this runtime speaks.
    #[error("names no version this runtime supports; the newest is {}", SpecVersion::CURRENT)]
    NoVersion,
    /// A key that plugins written in Go take for one of the protocol's although its case differs.
    #[error(
        "is spelt differently from `{expected}`, which some plugins would take it for: write `{expected}`"
    )]
    Spelling {
        /// The key as the specification writes it.
        expected: &'static str,
    },
}

fn at(pointer: impl Into<String>, problem: impl Into<ConfProblem>) -> ConfError {
    ConfError { pointer: pointer.into(), problem: problem.into() }
}

impl NetworkList {
    /// Parses a network configuration list, or a single plugin's configuration (deprecated by the
    /// specification), which becomes a list of one.
    ///
    /// The version chosen is the highest that this runtime supports of `cniVersion` and `cniVersions`;
    /// without both it is 0.1.0.
    ///
    /// # Errors
    /// [`ConfError`] with pointer and problem.
    pub fn parse(json: &[u8]) -> Result<Self, ConfError> {
        let raw: Box<RawValue> = serde_json::from_slice(json).map_err(|e| at("/", ConfProblem::Json(e)))?;
        Self::from_raw(raw)
    }

    fn from_raw(raw: Box<RawValue>) -> Result<Self, ConfError> {
        json::refuse_duplicate_keys(raw.get()).map_err(|e| at("/", ConfProblem::Json(e)))?;
        let object = object(&raw, "/")?;
        if object.get("plugins").is_none() && object.get("type").is_some() {
            return Self::from_raw(list_of_one(&object, raw)?);
        }

        let name = object.get("name").ok_or_else(|| at("/name", ConfProblem::Missing))?;
        let name = ListName::try_from(string(name, "/name")?).map_err(|e| at("/name", e))?;
        let versions = versions(&object)?;
        let version = *versions.last().ok_or_else(|| at("/cniVersions", ConfProblem::NoVersion))?;
        flag(&object, "loadOnlyInlinedPlugins")?;

        let elements = object.get("plugins").ok_or_else(|| at("/plugins", ConfProblem::Missing))?;
        let elements: Vec<Box<RawValue>> = typed(elements, "/plugins", "a list")?;
        let mut plugins = elements
            .iter()
            .enumerate()
            .map(|(index, element)| PluginConf::from_raw(element, &format!("/plugins/{index}")));
        let first = plugins.next().ok_or_else(|| at("/plugins", ConfProblem::NoPlugins))??;
        let rest = plugins.collect::<Result<Vec<_>, _>>()?;

        Ok(Self {
            name,
            version,
            versions,
            disable_check: flag(&object, "disableCheck")?,
            disable_gc: flag(&object, "disableGC")?,
            sockets: object.get(keys::SOCKETS).map(plugin_types).transpose()?,
            first,
            rest,
            raw,
        })
    }

    /// The network's name.
    pub fn name(&self) -> &ListName {
        &self.name
    }

    /// The version every plugin of the list is called with.
    pub fn version(&self) -> SpecVersion {
        self.version
    }

    /// All versions the configuration declares and this runtime supports.
    pub fn versions(&self) -> &BTreeSet<SpecVersion> {
        &self.versions
    }

    /// Whether CHECK must not be called for this network.
    pub fn disable_check(&self) -> bool {
        self.disable_check
    }

    /// Whether GC must not be called for this network.
    pub fn disable_gc(&self) -> bool {
        self.disable_gc
    }

    /// The types that daemons serve, all others being programs; `None` before the list is settled.
    ///
    /// The list's JSON has them ([`keys::SOCKETS`]), so that a list that is stored with its attachment is
    /// deleted and checked the way it was added.
    pub fn sockets(&self) -> Option<&BTreeSet<PluginType>> {
        self.sockets.as_ref()
    }

    /// The plugins in the order of ADD; at least one.
    pub fn plugins(&self) -> impl DoubleEndedIterator<Item = &PluginConf> + Clone {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The plugin that ADD calls first.
    pub fn first_plugin(&self) -> &PluginConf {
        &self.first
    }

    /// Every binary the list needs, each once: plugins in order, and the IPAM plugins they delegate to.
    pub fn plugin_types(&self) -> impl Iterator<Item = &PluginType> {
        let mut seen = BTreeSet::new();
        self.plugins()
            .flat_map(|plugin| [Some(plugin.plugin_type()), plugin.ipam()])
            .flatten()
            .filter(move |plugin_type| seen.insert(*plugin_type))
    }

    /// The JSON text as it was given (a single configuration: as the list it became).
    pub fn raw(&self) -> &str {
        self.raw.get()
    }

    /// The same list that declares `version` only, in its JSON too, so that it is called with that version
    /// after it was stored and read back.
    ///
    /// # Errors
    /// [`ConfProblem::Json`] if the JSON cannot be rewritten.
    pub fn pinned(&self, version: SpecVersion) -> Result<Self, ConfError> {
        let mut object = object(&self.raw, "/")?;
        object.retain(|key| key != "cniVersions");
        object.set("cniVersion", raw_value(&version)?);
        Ok(Self { version, versions: BTreeSet::from([version]), raw: raw_value(&object)?, ..self.clone() })
    }

    /// The same list, whose plugins of the types `sockets` are served by daemons.
    ///
    /// # Errors
    /// [`ConfProblem::Json`] if the JSON cannot be rewritten.
    pub(crate) fn served(&self, sockets: BTreeSet<PluginType>) -> Result<Self, ConfError> {
        let mut object = object(&self.raw, "/")?;
        object.set(keys::SOCKETS, raw_value(&sockets)?);
        Ok(Self { sockets: Some(sockets), raw: raw_value(&object)?, ..self.clone() })
    }

    /// The same list in the version of `settled`, and with the daemons of `settled`.
    ///
    /// # Errors
    /// [`ConfProblem::Json`] if the JSON cannot be rewritten.
    pub fn settled_as(&self, settled: &Self) -> Result<Self, ConfError> {
        let is_pinned = self.versions != settled.versions;
        let list = if is_pinned { self.pinned(settled.version)? } else { self.clone() };
        match &settled.sockets {
            Some(sockets) => list.served(sockets.clone()),
            None => Ok(list),
        }
    }
}

impl PartialEq for NetworkList {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw()
    }
}

impl Serialize for NetworkList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NetworkList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(Box::deserialize(deserializer)?).map_err(|e| {
            // serde errors have no source, so both halves go into the one message.
            D::Error::custom(format_args!("{e}: {}", e.problem))
        })
    }
}

impl PluginConf {
    fn from_raw(raw: &RawValue, pointer: &str) -> Result<Self, ConfError> {
        let object = object(raw, pointer)?;
        refuse_misspelt(&object, pointer, &keys::PROTOCOL)?;

        let here = format!("{pointer}/type");
        let plugin_type = object.get("type").ok_or_else(|| at(&here, ConfProblem::Missing))?;
        let plugin_type = PluginType::try_from(string(plugin_type, &here)?).map_err(|e| at(&here, e))?;

        let here = format!("{pointer}/capabilities");
        let capabilities = match object.get("capabilities") {
            Some(value) => capabilities(value, &here)?,
            None => BTreeSet::new(),
        };

        Ok(Self { plugin_type, ipam: ipam_type(&object, &format!("{pointer}/ipam"))?, capabilities, object })
    }

    /// The plugin's binary.
    pub fn plugin_type(&self) -> &PluginType {
        &self.plugin_type
    }

    /// The IPAM plugin that this plugin delegates to.
    pub fn ipam(&self) -> Option<&PluginType> {
        self.ipam.as_ref()
    }

    /// The `ipam` object as it stands in the configuration.
    pub fn ipam_conf(&self) -> Option<&RawValue> {
        self.object.get("ipam")
    }

    /// Capabilities that the configuration switches on.
    pub fn capabilities(&self) -> &BTreeSet<String> {
        &self.capabilities
    }

    /// A key of the plugin's configuration.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.object.get(key)
    }

    /// The configuration that the plugin gets: without `capabilities` and without the keys that the runtime
    /// writes.
    pub(crate) fn passed_on(&self) -> Object {
        let mut object = self.object.clone();
        object.retain(|key| key != "capabilities" && !is_reserved(key));
        object
    }
}

/// Returns the list that libcni makes of a single plugin's configuration.
fn list_of_one(conf: &Object, raw: Box<RawValue>) -> Result<Box<RawValue>, ConfError> {
    let mut list = Object::default();
    for key in ["cniVersion", "name"] {
        if let Some(value) = conf.get(key) {
            list.set(key, value.to_owned());
        }
    }
    list.set("plugins", raw_value(&[raw])?);
    raw_value(&list)
}

fn versions(list: &Object) -> Result<BTreeSet<SpecVersion>, ConfError> {
    let mut versions = BTreeSet::new();
    let single = list.get("cniVersion").map(|value| string(value, "/cniVersion")).transpose()?;
    let Some(several) = list.get("cniVersions") else {
        let version =
            SpecVersion::parse(single.as_deref().unwrap_or_default()).map_err(|e| at("/cniVersion", e))?;
        return Ok(BTreeSet::from([version]));
    };
    let several: Vec<String> = typed(several, "/cniVersions", "a list of strings")?;
    let several = several.into_iter().enumerate().map(|(i, text)| (format!("/cniVersions/{i}"), text));
    let single = single.filter(|text| !text.is_empty()).map(|text| ("/cniVersion".to_owned(), text));
    for (pointer, text) in several.chain(single) {
        match SpecVersion::parse(&text) {
            Ok(version) => {
                versions.insert(version);
            }
            // A newer runtime may use it.
            Err(_) if version::is_well_formed(&text) => {}
            Err(error) => return Err(at(pointer, error)),
        }
    }
    if versions.is_empty() { Err(at("/cniVersions", ConfProblem::NoVersion)) } else { Ok(versions) }
}

fn plugin_types(names: &RawValue) -> Result<BTreeSet<PluginType>, ConfError> {
    let pointer = member("", keys::SOCKETS);
    let names: Vec<String> = typed(names, &pointer, "a list of strings")?;
    names.into_iter().map(|name| PluginType::try_from(name).map_err(|e| at(&pointer, e))).collect()
}

fn ipam_type(plugin: &Object, pointer: &str) -> Result<Option<PluginType>, ConfError> {
    let Some(ipam) = plugin.get("ipam").filter(|value| value.get() != "null") else {
        return Ok(None);
    };
    let ipam = object(ipam, pointer)?;
    refuse_misspelt(&ipam, pointer, &["type"])?;
    let Some(plugin_type) = ipam.get("type").filter(|value| value.get() != "null") else {
        return Ok(None);
    };
    let here = format!("{pointer}/type");
    match string(plugin_type, &here)? {
        none if none.is_empty() => Ok(None),
        name => PluginType::try_from(name).map(Some).map_err(|e| at(here, e)),
    }
}

/// Names of the capabilities that are switched on. `null` is the same as not there, for the whole and for
/// each.
fn capabilities(raw: &RawValue, pointer: &str) -> Result<BTreeSet<String>, ConfError> {
    let Some(object) = typed::<Option<Object>>(raw, pointer, "an object")? else {
        return Ok(BTreeSet::new());
    };
    let mut on = BTreeSet::new();
    for (name, value) in object.iter() {
        if typed::<Option<bool>>(value, &member(pointer, name), "true or false")? == Some(true) {
            on.insert(name.to_owned());
        }
    }
    Ok(on)
}

fn refuse_misspelt(object: &Object, pointer: &str, known: &'static [&'static str]) -> Result<(), ConfError> {
    for key in object.keys() {
        if let Some(expected) = known.iter().find(|known| keys::is_misspelt(key, known)) {
            return Err(at(member(pointer, key), ConfProblem::Spelling { expected }));
        }
    }
    Ok(())
}

/// A boolean, or one of the strings that libcni takes for one.
fn flag(list: &Object, key: &str) -> Result<bool, ConfError> {
    let Some(value) = list.get(key) else {
        return Ok(false);
    };
    match serde_json::from_str(value.get()) {
        Ok(Value::Bool(on)) => Ok(on),
        Ok(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Ok(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err(wrong_type(value, &format!("/{key}"), "true or false")),
    }
}

fn object(raw: &RawValue, pointer: &str) -> Result<Object, ConfError> {
    typed(raw, pointer, "an object")
}

fn string(raw: &RawValue, pointer: &str) -> Result<String, ConfError> {
    typed(raw, pointer, "a string")
}

fn typed<'a, T: Deserialize<'a>>(
    raw: &'a RawValue,
    pointer: &str,
    expected: &'static str,
) -> Result<T, ConfError> {
    serde_json::from_str(raw.get()).map_err(|_| wrong_type(raw, pointer, expected))
}

fn wrong_type(raw: &RawValue, pointer: &str, expected: &'static str) -> ConfError {
    let found = match raw.get().bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    at(pointer, ConfProblem::Type { expected, found })
}

fn raw_value<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, ConfError> {
    json::raw(value).map_err(|e| at("/", ConfProblem::Json(e)))
}
