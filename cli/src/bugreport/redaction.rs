//! Removes secrets. Pure.
//!
//! Objects lose what others may have put into them: values of environment variables, parameters and data of
//! other drivers, and what tools keep in annotations. CNI configurations are the admin's own: what is under a
//! key that may name a secret is replaced. Every text of the archive is searched for what looks like a
//! secret, too.

use netclaim_api::DRIVER_NAME;
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::value;

/// What stands for a secret.
pub(super) const REDACTED: &str = "(redacted)";

/// What names of secrets contain, in lower case and without punctuation.
const SECRET_NAMES: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "privatekey",
    "privkey",
    "sharedkey",
    "accesskey",
    "encryptionkey",
];

/// Names of secrets that are parts of harmless words.
const SECRET_WORDS: [&str; 3] = ["pass", "psk", "pwd"];

/// The same for keys of CNI configurations only: in texts they are mostly something else.
const SECRET_KEY_NAMES: [&str; 1] = ["auth"];
const SECRET_KEY_WORDS: [&str; 2] = ["key", "pin"];

/// Ends of names that say where a secret is or how long it is valid. In a text such a value stays.
const HARMLESS_ENDS: [&str; 7] = ["name", "names", "namespace", "ref", "file", "path", "seconds"];

/// A name before its value in a text: `NAME=`, `NAME:`, `"NAME":`, or `--NAME` alone. The value may be
/// quoted.
const NAMED: &str =
    r#"([A-Za-z_][A-Za-z0-9_-]*)["'\\]*[ \t]*[:=][ \t]*|--([A-Za-z][A-Za-z0-9_-]*)(?:["'\\]*,[ \t]*|[ \t]+)"#;

/// What is a secret by itself, between groups that are kept.
const SHAPES: [&str; 8] = [
    // Private keys of PEM files, also where their end is cut off.
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[A-Za-z0-9+/=\\\s:,]|-[A-Za-z])*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
    // JSON web tokens, such as those of service accounts.
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",
    // Headers of HTTP.
    r"(?i)(\b(?:bearer|basic)[ \t]+)[A-Za-z0-9._~+/=-]{8,}",
    // URLs with a password.
    r"(://[A-Za-z0-9._~%-]*:)[!#-&(-.0-9:;=?A-Z_a-z~]+(@)",
    // Bootstrap tokens of Kubernetes.
    r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b",
    // Access keys of AWS, tokens of GitHub.
    r"\bA[KS]IA[0-9A-Z]{16}\b",
    r"\bgh[oprsu]_[A-Za-z0-9]{36,}\b",
    // The path of netclaim's webhook.
    r"(/review/)[0-9a-f]{64}\b",
];

/// Values that are not secrets, whatever they are called.
const HARMLESS: [&str; 5] = ["true", "false", "null", "None", "~"];

/// Searches texts for secrets.
#[derive(Debug)]
pub(crate) struct Redaction {
    named: Regex,
    shapes: Vec<Regex>,
}

impl Redaction {
    /// # Errors
    /// Never fails with the patterns of this file, which a test proves.
    pub(crate) fn new() -> Result<Self, regex::Error> {
        let regex = |pattern| RegexBuilder::new(pattern).unicode(false).build();
        Ok(Self { named: regex(NAMED)?, shapes: SHAPES.into_iter().map(regex).collect::<Result<_, _>>()? })
    }

    /// Returns the text without what looks like a secret.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for shape in &self.shapes {
            text = shape.replace_all(&text, format!("${{1}}{REDACTED}${{2}}")).into_owned();
        }
        self.without_named(&text)
    }

    /// Replaces the values that stand after names of secrets.
    fn without_named(&self, text: &str) -> String {
        let (mut kept, mut at) = (String::with_capacity(text.len()), 0);
        while let Some(found) = self.named.captures_at(text, at) {
            let Some(whole) = found.get(0) else { break };
            let name = found.get(1).or_else(|| found.get(2)).map_or("", |name| name.as_str());
            let is_flag = found.get(1).is_none();
            kept.push_str(&text[at..whole.end()]);
            at = whole.end();
            let rest = &text[at..];
            // `--token --verbose` has no value, and `token::Error` is a path.
            let is_value = !rest.starts_with(if is_flag { '-' } else { ':' });
            if !is_value || !names_secret(name) {
                continue;
            }
            let value = value::of(rest);
            let secret = &rest[value.clone()];
            if secret.is_empty() || HARMLESS.contains(&secret) || secret.starts_with(REDACTED) {
                continue;
            }
            kept.push_str(&rest[..value.start]);
            kept.push_str(REDACTED);
            at += value.end;
        }
        kept.push_str(&text[at..]);
        kept
    }
}

/// Removes what the report must not have of an object.
pub(super) fn scrub(object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
            redact_fields(annotations);
        }
    }
    if kind == "ClaimNetwork" {
        for field in ["/spec/cni", "/spec/allow"] {
            object.pointer_mut(field).into_iter().for_each(redact);
        }
    }
    for device in object.pointer_mut("/status/devices").and_then(Value::as_array_mut).into_iter().flatten() {
        if device["driver"] == DRIVER_NAME {
            device.get_mut("data").into_iter().for_each(redact);
        } else if let Some(device) = device.as_object_mut() {
            device.remove("data");
        }
    }
    walk(object);
}

/// Removes environments and opaque parameters, wherever they are.
fn walk(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(walk),
        Value::Object(fields) => {
            for variable in fields.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(value) = variable.get_mut("value") {
                    *value = REDACTED.into();
                }
            }
            if let Some(opaque) = fields.get_mut("opaque").and_then(Value::as_object_mut) {
                let is_ours = opaque.get("driver").is_some_and(|driver| driver == DRIVER_NAME);
                if let Some(parameters) = opaque.get_mut("parameters") {
                    if is_ours { redact(parameters) } else { *parameters = REDACTED.into() }
                }
            }
            fields.values_mut().for_each(walk);
        }
        _ => {}
    }
}

/// Replaces values under keys that may name a secret, also in JSON within a text.
pub(crate) fn redact(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => redact_fields(fields),
        Value::String(text) if text.trim_start().starts_with(['{', '[']) => {
            if let Ok(mut inner @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
                redact(&mut inner);
                *text = inner.to_string();
            }
        }
        _ => {}
    }
}

fn redact_fields(fields: &mut Map<String, Value>) {
    for (key, value) in fields {
        match value {
            Value::Null | Value::Bool(_) => {}
            value if may_be_secret(key) => *value = REDACTED.into(),
            value => redact(value),
        }
    }
}

/// Whether what is under this key of a configuration may be a secret.
fn may_be_secret(key: &str) -> bool {
    let plain = plain(key);
    is_secret(key, &plain)
        || SECRET_KEY_NAMES.iter().any(|secret| plain.contains(secret))
        || words(key).any(|word| SECRET_KEY_WORDS.contains(&word.as_str()))
}

/// Whether what stands after this name in a text is a secret.
fn names_secret(name: &str) -> bool {
    let plain = plain(name);
    is_secret(name, &plain) && !HARMLESS_ENDS.iter().any(|end| plain.ends_with(end))
}

fn is_secret(name: &str, plain: &str) -> bool {
    SECRET_NAMES.iter().any(|secret| plain.contains(secret))
        || words(name).any(|word| SECRET_WORDS.contains(&word.as_str()))
}

/// Returns the name in lower case and without punctuation.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// The words of `tls_key`, `tls-key` and `tlsKey`, in lower case.
fn words(key: &str) -> impl Iterator<Item = String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in key.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && after_lower) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
        after_lower = c.is_ascii_lowercase();
    }
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> String {
        Redaction::new().unwrap().text(text)
    }

    #[test]
    fn texts_that_look_like_secrets_are_replaced() {
        let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl-_";
        let cases = [
            (
                format!("GET failed: Authorization: Bearer {jwt}, retrying"),
                "GET failed: Authorization: Bearer (redacted), retrying".to_owned(),
            ),
            (format!("token {jwt}."), "token (redacted).".to_owned()),
            (
                format!("Post \"https://netclaim-webhook/review/{}?timeout=5s\"", "0a".repeat(32)),
                "Post \"https://netclaim-webhook/review/(redacted)?timeout=5s\"".to_owned(),
            ),
            (
                "url=https://admin:hunter2@registry.example.com/x".into(),
                "url=https://admin:(redacted)@registry.example.com/x".into(),
            ),
            (
                r#"stdin {"type":"x","password":"hunter2","mtu":1400}"#.into(),
                r#"stdin {"type":"x","password":"(redacted)","mtu":1400}"#.into(),
            ),
            (
                r#"{"message":"stdin {\"apiKey\":\"hunter2\",\"a\":1}"}"#.into(),
                r#"{"message":"stdin {\"apiKey\":\"(redacted)\",\"a\":1}"}"#.into(),
            ),
            ("password: Schlüssel1 mtu".into(), "password: (redacted) mtu".into()),
            ("CNI_ARGS=K=V;PASSWORD=hunter2".into(), "CNI_ARGS=K=V;PASSWORD=(redacted)".into()),
            (
                "    client-secret: hunter2\n    mtu: 1".into(),
                "    client-secret: (redacted)\n    mtu: 1".into(),
            ),
            (
                "kubeadm join --token abcdef.0123456789abcdef x".into(),
                "kubeadm join --token (redacted) x".into(),
            ),
            (
                "AKIAIOSFODNN7EXAMPLE ghp_0123456789abcdefghijABCDEFGHIJ012345".into(),
                "(redacted) (redacted)".into(),
            ),
            (r#"{"password":"correct horse battery"}"#.into(), r#"{"password":"(redacted)"}"#.into()),
            (r#"{"password":"a,b}c","mtu":1}"#.into(), r#"{"password":"(redacted)","mtu":1}"#.into()),
            (r#"{"password":" hunter2"}"#.into(), r#"{"password":"(redacted)"}"#.into()),
            (r#"{"password":"a\"hunter2\\"}"#.into(), r#"{"password":"(redacted)"}"#.into()),
            (
                r#"{"message":"{\"password\":\"a\\\"b c\",\"a\":1}"}"#.into(),
                r#"{"message":"{\"password\":\"(redacted)\",\"a\":1}"}"#.into(),
            ),
            (r#"{"password":["hunter2","a]b"],"mtu":1}"#.into(), r#"{"password":(redacted),"mtu":1}"#.into()),
            ("password: 'it''s hunter2', mtu: 1".into(), "password: '(redacted)', mtu: 1".into()),
            (
                r#"Config { password: Some("a b"), mtu: 1 }"#.into(),
                "Config { password: (redacted), mtu: 1 }".into(),
            ),
            ("password=it's,hunter2, retrying".into(), "password=(redacted), retrying".into()),
            ("password=a,b}c, retrying".into(), "password=(redacted), retrying".into()),
            (
                r#"{"msg":"password=hunter2","level":"info"}"#.into(),
                r#"{"msg":"password=(redacted)","level":"info"}"#.into(),
            ),
            (r#"{"msg":"password=hunter2\nmtu=1"}"#.into(), r#"{"msg":"password=(redacted)\nmtu=1"}"#.into()),
            ("vpn --password hunter2 --mtu 1".into(), "vpn --password (redacted) --mtu 1".into()),
            (
                r#"["vpn","--password","hunter2 x","--mtu"]"#.into(),
                r#"["vpn","--password","(redacted)","--mtu"]"#.into(),
            ),
            ("pass=hunter2 db_pwd: hunter2".into(), "pass=(redacted) db_pwd: (redacted)".into()),
            ("aws_secret_access_key=hunter2".into(), "aws_secret_access_key=(redacted)".into()),
            (r#"{"secretKey":"hunter2"}"#.into(), r#"{"secretKey":"(redacted)"}"#.into()),
            ("PresharedKey = hunter2\nPort = 1".into(), "PresharedKey = (redacted)\nPort = 1".into()),
            ("password: \"hunter2 and no end\nmtu: 1".into(), "password: \"(redacted)\nmtu: 1".into()),
            (
                "a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb".into(),
                "a\n(redacted)\nb".into(),
            ),
            ("a -----BEGIN PRIVATE KEY-----\\nMHcC".into(), "a (redacted)".into()),
        ];
        for (secret, expected) in cases {
            assert_eq!(text(&secret), expected);
        }
    }

    #[test]
    fn a_text_that_is_not_a_secret_stays() {
        for harmless in [
            "automountServiceAccountToken: false",
            "tokenExpirationSeconds: 3607",
            "secretName: registry",
            r#""secretKeyRef":{"name":"registry","key":"a"}"#,
            "imagePullSecrets:\n- name: registry",
            "reviewed by auth::token::Review: bypass=1, key: netclaim.dev/network",
            "password=, mtu=1",
            "the flag --token-file /var/run/token, and --token --verbose",
            "  token:\n    type: string",
            "node0/net-storage: attached as net1 (10.20.0.2/22, fd00::2/64)",
            "image: ghcr.io/x/netclaim@sha256:0123456789abcdef0123456789abcdef",
            "uid: 0f8fad5b-d9cb-469f-a165-70867728950e",
            "Größe: ein Schlüssel für alles, mit Umlauten",
        ] {
            assert_eq!(text(harmless), harmless);
        }
        let once = text("password: hunter2");
        assert_eq!(text(&once), once);
    }

    #[test]
    fn keys_of_secrets_are_recognised() {
        for secret in [
            "password",
            "etcd_password",
            "apiKey",
            "API-KEY",
            "tlsKey",
            "key",
            "key_file",
            "k8s_auth_token",
            "clientSecret",
            "wgPrivateKey",
            "presharedkey",
            "privkey",
            "aws_secret_access_key",
            "psk",
            "PASS",
        ] {
            assert!(may_be_secret(secret), "{secret}");
        }
        for harmless in [
            "type",
            "master",
            "mode",
            "keepalive",
            "passthrough",
            "mtu",
            "pinned",
            "ipam",
            "capabilities",
            "certain",
            "monkey",
        ] {
            assert!(!may_be_secret(harmless), "{harmless}");
        }
    }

    #[test]
    fn a_network_keeps_its_configuration_without_its_secrets() {
        let mut network = json!({"kind": "ClaimNetwork", "metadata": {"name": "n", "managedFields": [{"manager": "kubectl"}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{hunter2}", "note": "x", "example.com/token": "hunter2"}},
            "spec": {"nodeSelector": {"matchLabels": {"key": "stays"}}, "cni": {"plugins": [
                {"type": "vpn", "master": "eth1", "psk": "hunter2", "auth": {"user": "hunter2"}, "debug": true,
                 "config": "{\"password\": \"hunter2\", \"mtu\": 1400}", "peers": [{"privateKey": "hunter2", "port": 1}]}]}}});
        scrub(&mut network);
        let plugin = &network["spec"]["cni"]["plugins"][0];
        assert!(!network.to_string().contains("hunter2"), "{network:#}");
        assert_eq!(
            network["metadata"],
            json!({"name": "n", "annotations": {"note": "x", "example.com/token": REDACTED}})
        );
        assert_eq!(
            (&plugin["master"], &plugin["debug"], &plugin["peers"][0]["port"]),
            (&json!("eth1"), &json!(true), &json!(1))
        );
        assert_eq!(plugin["config"], r#"{"mtu":1400,"password":"(redacted)"}"#);
        assert_eq!(network["spec"]["nodeSelector"]["matchLabels"]["key"], "stays");
    }

    #[test]
    fn a_claim_loses_what_other_drivers_have() {
        let opaque = |driver: &str| json!({"opaque": {"driver": driver, "parameters": {"kind": "AttachmentConfig", "mtu": 1400, "args": {"TOKEN": "hunter2"}}}});
        let mut claim = json!({"kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {"devices": {"config": [opaque("netclaim.dev"), opaque("gpu.example.com")]}},
            "status": {"allocation": {"devices": {"config": [opaque("gpu.example.com")]}}, "devices": [
                {"driver": "netclaim.dev", "data": {"cniVersion": "1.1.0", "password": "hunter2"}},
                {"driver": "gpu.example.com", "data": {"x": "hunter2"}}]}});
        scrub(&mut claim);
        assert!(!claim.to_string().contains("hunter2"), "{claim:#}");
        let config = &claim["spec"]["devices"]["config"];
        assert_eq!(
            config[0]["opaque"]["parameters"],
            json!({"kind": "AttachmentConfig", "mtu": 1400, "args": {"TOKEN": REDACTED}})
        );
        assert_eq!(config[1]["opaque"], json!({"driver": "gpu.example.com", "parameters": REDACTED}));
        assert_eq!(claim["status"]["devices"][0]["data"]["cniVersion"], "1.1.0");
        assert_eq!(claim["status"]["devices"][1], json!({"driver": "gpu.example.com"}));
    }

    #[test]
    fn a_pod_keeps_the_names_of_its_environment() {
        let mut pod = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "env": [
            {"name": "NETCLAIM_LOG", "value": "hunter2"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}]}});
        scrub(&mut pod);
        assert_eq!(
            pod["spec"]["containers"][0]["env"],
            json!([{"name": "NETCLAIM_LOG", "value": REDACTED}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}])
        );
    }
}
