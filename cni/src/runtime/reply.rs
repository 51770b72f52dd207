//! Reads a finished plugin's exit status and standard output, without IO.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::{EffectState, ErrorKind, PluginError, beginning};
use crate::json::Object;
use crate::result::CniResult;
use crate::version::SpecVersion;

/// How much of a plugin's standard output is kept, in bytes. More is read and thrown away.
pub const STDOUT_LIMIT: usize = 4 << 20;

/// A plugin's exit status and what it printed.
pub(crate) struct Reply {
    pub(crate) status: ExitStatus,
    /// At most [`STDOUT_LIMIT`] bytes.
    pub(crate) stdout: Vec<u8>,
    /// Whether more was printed than is in `stdout`.
    pub(crate) overflow: bool,
}

impl Reply {
    /// Whether the plugin succeeded. Ignores its output then: DEL, CHECK, GC and STATUS have none.
    pub(crate) fn success(&self) -> Result<(), ErrorKind> {
        if let Some(signal) = self.status.signal() {
            return Err(ErrorKind::Signal { signal });
        }
        match self.status.code() {
            Some(0) => Ok(()),
            status => Err(self.failure(status.unwrap_or(-1))),
        }
    }

    fn failure(&self, status: i32) -> ErrorKind {
        let text = String::from_utf8_lossy(&self.stdout);
        if text.trim().is_empty() {
            return ErrorKind::Silent { status };
        }
        // A plugin that fails after it printed its result prints the error as a second document.
        let documents = serde_json::Deserializer::from_str(&text).into_iter::<Box<RawValue>>();
        match documents.map_while(Result::ok).filter_map(|document| plugin_error(&document)).last() {
            Some(error) => ErrorKind::Plugin(error),
            None => ErrorKind::Garbage { status, stdout: beginning(&self.stdout) },
        }
    }

    /// The result of an ADD, in the version the plugin was called with.
    pub(crate) fn result(&self, version: SpecVersion) -> Result<CniResult, ErrorKind> {
        let document = self.document()?;
        if let Some(error) = plugin_error(&document).filter(|error| error.code != 0) {
            return Err(ErrorKind::ErrorDespiteSuccess(error));
        }
        let result = CniResult::parse(document.get(), version)?;
        if result.version() != version {
            tracing::warn!(called = %version, answered = %result.version(), "CNI plugin answered in another version");
        }
        Ok(result.to_version(version)?)
    }

    /// The versions in the answer to VERSION that this runtime knows.
    pub(crate) fn versions(&self) -> Result<BTreeSet<SpecVersion>, ErrorKind> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Versions {
            cni_version: String,
            #[serde(default)]
            supported_versions: Option<Vec<String>>,
        }

        let unusable = || ErrorKind::VersionReply { stdout: beginning(&self.stdout) };
        let document = self.document()?;
        let versions: Versions = serde_json::from_str(document.get()).map_err(|_| unusable())?;
        if versions.cni_version.is_empty() {
            return Err(unusable());
        }
        match versions.supported_versions.filter(|list| !list.is_empty()) {
            Some(list) => Ok(list.iter().filter_map(|text| SpecVersion::parse(text).ok()).collect()),
            // 0.2.0 had no list.
            None if versions.cni_version == "0.2.0" => {
                Ok(BTreeSet::from([SpecVersion::V0_1_0, SpecVersion::V0_2_0]))
            }
            None => Err(unusable()),
        }
    }

    /// The one JSON document that a successful plugin printed.
    fn document(&self) -> Result<Box<RawValue>, ErrorKind> {
        if self.overflow {
            return Err(ErrorKind::TooMuchOutput { limit: STDOUT_LIMIT });
        }
        let not_json = |source| ErrorKind::NotJson { stdout: beginning(&self.stdout), source };
        let mut documents = serde_json::Deserializer::from_slice(&self.stdout).into_iter::<Box<RawValue>>();
        let first = documents.next().ok_or(ErrorKind::Empty)?.map_err(not_json)?;
        match documents.next() {
            None => Ok(first),
            Some(Ok(_)) => Err(ErrorKind::TwoDocuments { stdout: beginning(&self.stdout) }),
            Some(Err(source)) => Err(not_json(source)),
        }
    }
}

/// Reads an error object: it has a code or a message. Members of another type count as missing.
///
/// Members are read one by one, so that an unreadable one, such as a huge number, does not hide the error.
fn plugin_error(document: &RawValue) -> Option<PluginError> {
    let object: Object = serde_json::from_str(document.get()).ok()?;
    let code: Option<u64> = object.get("code").and_then(|code| serde_json::from_str(code.get()).ok());
    let text = |key| object.get(key).map(text).unwrap_or_default();
    let msg = text("msg");
    if code.is_none() && msg.is_empty() {
        return None;
    }
    Some(PluginError {
        code: code.unwrap_or_default(),
        msg,
        details: text("details"),
        effect_state: match text("effectState").as_str() {
            "none" => Some(EffectState::None),
            "container" => Some(EffectState::Container),
            "global" => Some(EffectState::Global),
            _ => None,
        },
    })
}

/// Reads a string. Half a surrogate pair, as Python writes in file names that are not UTF-8, keeps its
/// escapes.
fn text(value: &RawValue) -> String {
    let written = value.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    written
        .map(|written| serde_json::from_str(value.get()).unwrap_or_else(|_| written.to_owned()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: i32, stdout: &str) -> Reply {
        // A wait status has the exit status in its second byte.
        Reply { status: ExitStatus::from_raw(status << 8), stdout: stdout.into(), overflow: false }
    }

    #[test]
    fn the_last_error_object_counts_when_a_plugin_fails() {
        let stdout =
            r#"{"cniVersion":"1.0.0","ips":[]}{"code":5,"msg":"one"} {"code":999,"msg":"two","details":"d"}"#;
        match reply(1, stdout).success().unwrap_err() {
            ErrorKind::Plugin(error) => assert_eq!(error.to_string(), "error 999: two (d)"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_object_is_found_before_trailing_garbage_and_with_broken_text() {
        for stdout in
            [&b"{\"code\":11,\"msg\":\"busy\"} panic: x"[..], b"{\"code\":11,\"msg\":\"busy \xff\"}"]
        {
            let reply = Reply { status: ExitStatus::from_raw(256), stdout: stdout.into(), overflow: false };
            assert!(matches!(reply.success(), Err(ErrorKind::Plugin(PluginError { code: 11, .. }))));
        }
    }

    #[test]
    fn an_error_object_is_found_whatever_else_is_in_it() {
        for rest in [
            r#""n":1e999"#,
            r#""details":"/dir/\udcff""#,
            &format!(r#""d":{}{}"#, "[".repeat(300), "]".repeat(300)),
        ] {
            let stdout = format!(r#"{{"cniVersion":"1.0.0","code":5,"msg":"x",{rest}}}"#);
            assert!(
                matches!(reply(1, &stdout).success(), Err(ErrorKind::Plugin(PluginError { code: 5, .. }))),
                "{stdout}"
            );
            let result = reply(0, &stdout).result(SpecVersion::V1_0_0);
            assert!(matches!(result, Err(ErrorKind::ErrorDespiteSuccess(_))), "{stdout}");
        }
        let error = reply(1, r#"{"code":5,"msg":"x","details":"/dir/\udcff"}"#).success().unwrap_err();
        assert_eq!(error.to_string(), r"error 5: x (/dir/\udcff)");
    }

    #[test]
    fn a_result_is_not_an_error_object() {
        assert!(matches!(
            reply(1, r#"{"cniVersion":"1.0.0"}"#).success(),
            Err(ErrorKind::Garbage { status: 1, .. })
        ));
        assert!(matches!(reply(3, " \n").success(), Err(ErrorKind::Silent { status: 3 })));
    }

    #[test]
    fn the_effect_state_is_read_where_a_plugin_states_it() {
        let stdout = r#"{"code":100,"msg":"x","effectState":"container"}"#;
        match reply(1, stdout).success().unwrap_err() {
            ErrorKind::Plugin(error) => assert_eq!(error.effect_state, Some(EffectState::Container)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn versions_are_read_from_every_kind_of_answer() {
        let v = |text: &str| reply(0, text).versions();
        assert_eq!(
            v(r#"{"cniVersion":"1.0.0","supportedVersions":["0.4.0","9.9.9","1.0.0"]}"#).unwrap(),
            BTreeSet::from([SpecVersion::V0_4_0, SpecVersion::V1_0_0])
        );
        assert_eq!(v(r#"{"cniVersion":"0.2.0"}"#).unwrap().len(), 2);
        assert!(matches!(v(r#"{"cniVersion":"1.0.0"}"#), Err(ErrorKind::VersionReply { .. })));
        assert!(matches!(
            v(r#"{"cniVersion":"","supportedVersions":["1.0.0"]}"#),
            Err(ErrorKind::VersionReply { .. })
        ));
        assert!(matches!(v("[]"), Err(ErrorKind::VersionReply { .. })));
        assert!(matches!(v(""), Err(ErrorKind::Empty)));
    }
}
