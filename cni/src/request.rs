//! One plugin call: its environment and its standard input (specification, sections 2 and 3). No IO.

use std::ffi::{OsStr, OsString};
use std::fmt;

use serde_json::Map;

use crate::attachment::{Attachment, ValidAttachment};
use crate::bandwidth_device;
use crate::config::{NetworkList, PluginConf};
use crate::json::{self, Object};
use crate::result::{CniResult, ResultError};
use crate::trace_context::TraceContext;
use crate::version::SpecVersion;

/// An operation, `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Check that the attachment is as ADD left it. Since 0.4.0.
    Check,
    /// Check that the plugin can serve an ADD now. Since 1.1.0.
    Status,
    /// Remove resources of attachments that no longer exist. Since 1.1.0.
    Gc,
    /// Report the supported versions. Since 0.2.0.
    Version,
}

impl Verb {
    /// As it is written in `CNI_COMMAND`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// ADD and CHECK need the namespace.
    #[error("{0} needs a network namespace, and the attachment has none")]
    NoNetns(Verb),
    /// An argument that would be read as several, or not at all.
    #[error(
        "argument {key:?} cannot be passed in CNI_ARGS: keys and values may not contain `;`, `=` or NUL, and keys may not be empty"
    )]
    Arg {
        /// The argument's key.
        key: String,
    },
    /// The namespace's path cannot be an environment value.
    #[error("the path of the network namespace contains NUL")]
    NetnsPath,
    /// The earlier result does not exist in the configuration's version.
    #[error("the previous result cannot be handed on in version {to}")]
    PrevResult {
        /// The configuration's version.
        to: SpecVersion,
        /// Why.
        #[source]
        source: ResultError,
    },
    /// The input could not be written as JSON.
    #[error("the plugin's input cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// The environment and standard input of one plugin call.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operation.
    pub verb: Verb,
    /// The trace, and all six `CNI_*` variables: a missing one could be inherited.
    pub env: Vec<(&'static str, OsString)>,
    /// JSON for standard input.
    pub stdin: Vec<u8>,
}

impl Request {
    /// ADD, DEL or CHECK of one attachment. `cni_path` is the value of `CNI_PATH`.
    ///
    /// For ADD `prev` is the result of the plugin before this one, else the result of the whole ADD. DEL gets
    /// it from version 0.4.0 on, as the specification introduced it there.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn attachment(
        verb: Verb,
        list: &NetworkList,
        plugin: &PluginConf,
        attachment: &Attachment,
        prev: Option<&CniResult>,
        cni_path: &OsStr,
    ) -> Result<Self, RequestError> {
        if attachment.netns.is_none() && verb != Verb::Del {
            return Err(RequestError::NoNetns(verb));
        }
        let netns = attachment.netns.as_ref().map(|path| path.as_os_str().to_owned()).unwrap_or_default();
        if netns.as_encoded_bytes().contains(&0) {
            return Err(RequestError::NetnsPath);
        }

        let mut stdin = base(list, plugin)?;
        if let Some(name) = bandwidth_device::network_name_for(list, plugin, attachment, prev) {
            stdin.set("name", json::raw(&name)?);
        }
        let runtime_config = runtime_config(plugin, attachment)?;
        if !runtime_config.is_empty() {
            stdin.set("runtimeConfig", json::raw(&runtime_config)?);
        }
        if let Some(prev) = prev.filter(|_| verb != Verb::Del || list.version().has_check()) {
            let to = list.version();
            let prev = prev.to_version(to).map_err(|source| RequestError::PrevResult { to, source })?;
            stdin.set("prevResult", json::raw(&prev)?);
        }
        let mut env = vec![
            ("CNI_COMMAND", verb.as_str().into()),
            ("CNI_CONTAINERID", attachment.container_id.as_str().into()),
            ("CNI_NETNS", netns),
            ("CNI_ARGS", cni_args(&attachment.args)?.into()),
            ("CNI_IFNAME", attachment.if_name.as_str().into()),
            ("CNI_PATH", cni_path.to_owned()),
        ];
        env.extend(attachment.trace.iter().flat_map(TraceContext::env));
        Ok(Self { verb, env, stdin: serde_json::to_vec(&stdin)? })
    }

    /// STATUS of one plugin.
    ///
    /// # Errors
    /// [`RequestError::Json`].
    pub fn status(list: &NetworkList, plugin: &PluginConf, cni_path: &OsStr) -> Result<Self, RequestError> {
        Self::network(Verb::Status, &base(list, plugin)?, cni_path)
    }

    /// GC of one plugin. The attachments are sent under both names that plugins look for: the
    /// specification's, and the one it had by mistake.
    ///
    /// # Errors
    /// [`RequestError::Json`].
    pub fn gc(
        list: &NetworkList,
        plugin: &PluginConf,
        valid: &[ValidAttachment],
        cni_path: &OsStr,
    ) -> Result<Self, RequestError> {
        let mut stdin = base(list, plugin)?;
        for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
            stdin.set(key, json::raw(valid)?);
        }
        Self::network(Verb::Gc, &stdin, cni_path)
    }

    /// VERSION. Plugins built with an early library require all variables, so they are set although they mean
    /// nothing.
    pub fn version() -> Self {
        Self {
            verb: Verb::Version,
            env: vec![
                ("CNI_COMMAND", Verb::Version.as_str().into()),
                ("CNI_CONTAINERID", OsString::new()),
                ("CNI_NETNS", "dummy".into()),
                ("CNI_ARGS", OsString::new()),
                ("CNI_IFNAME", "dummy".into()),
                ("CNI_PATH", "dummy".into()),
            ],
            stdin: format!(r#"{{"cniVersion":"{}"}}"#, SpecVersion::CURRENT).into_bytes(),
        }
    }

    fn network(verb: Verb, stdin: &Object, cni_path: &OsStr) -> Result<Self, RequestError> {
        Ok(Self {
            verb,
            env: vec![
                ("CNI_COMMAND", verb.as_str().into()),
                ("CNI_CONTAINERID", OsString::new()),
                ("CNI_NETNS", OsString::new()),
                ("CNI_ARGS", OsString::new()),
                ("CNI_IFNAME", OsString::new()),
                ("CNI_PATH", cni_path.to_owned()),
            ],
            stdin: serde_json::to_vec(stdin)?,
        })
    }
}

/// The plugin's configuration with the version and the name of the list.
fn base(list: &NetworkList, plugin: &PluginConf) -> Result<Object, RequestError> {
    let mut object = plugin.passed_on();
    object.set("cniVersion", json::raw(&list.version())?);
    object.set("name", json::raw(list.name())?);
    Ok(object)
}

fn runtime_config(plugin: &PluginConf, attachment: &Attachment) -> Result<Object, RequestError> {
    let args = Map::from(attachment.capability_args.clone());
    let mut config = Object::default();
    for capability in plugin.capabilities() {
        if let Some(value) = args.get(capability) {
            config.set(capability, json::raw(value)?);
        }
    }
    Ok(config)
}

/// `IgnoreUnknown=1` comes first: without it many plugins refuse arguments that they do not know.
fn cni_args(args: &[(String, String)]) -> Result<String, RequestError> {
    const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

    let mut text = format!("{IGNORE_UNKNOWN}=1");
    for (key, value) in args.iter().filter(|(key, _)| key != IGNORE_UNKNOWN) {
        let forbidden = [';', '=', '\0'];
        if key.is_empty() || key.contains(forbidden) || value.contains(forbidden) {
            return Err(RequestError::Arg { key: key.clone() });
        }
        text.push(';');
        text.push_str(key);
        text.push('=');
        text.push_str(value);
    }
    Ok(text)
}
