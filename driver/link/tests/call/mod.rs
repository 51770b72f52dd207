//! Calls of the plugin, as a runtime makes them.

#![allow(dead_code)] // Not every test program uses all of it.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

pub struct Call {
    pub command: &'static str,
    pub container: String,
    pub interface: String,
    pub netns: &'static str,
    /// Whether the runtime allows the plugin's own namespace.
    pub is_override: bool,
}

impl Call {
    /// A call for the network namespace of the calling thread.
    pub fn new(command: &'static str, container: &str, interface: &str) -> Self {
        let (container, interface) = (container.to_owned(), interface.to_owned());
        Self { command, container, interface, netns: "/proc/self/ns/net", is_override: true }
    }

    /// Starts the plugin, which has read its configuration then or will.
    pub fn start(&self, config: &str) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netclaim-link"));
        command.env_clear().env("CNI_COMMAND", self.command).env("CNI_NETNS", self.netns);
        command.env("CNI_CONTAINERID", &self.container).env("CNI_IFNAME", &self.interface);
        if self.is_override {
            command.env("CNI_NETNS_OVERRIDE", "1");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(config.as_bytes()).unwrap();
        child
    }

    /// Returns the answer, or the error's code and text.
    pub fn run_text(&self, config: &str) -> Result<Value, (i64, String)> {
        let output = self.start(config).wait_with_output().unwrap();
        let answer: Value = match output.stdout.as_slice() {
            b"" => Value::Null,
            answer => serde_json::from_slice(answer).unwrap(),
        };
        if output.status.success() {
            return Ok(answer);
        }
        assert!(answer["cniVersion"].is_string(), "{answer}");
        let text = format!("{}: {}", answer["msg"].as_str().unwrap(), answer["details"]);
        Err((answer["code"].as_i64().unwrap(), text))
    }

    pub fn run(&self, network: &str, own: &Value, more: Value) -> Result<Value, (i64, String)> {
        self.run_text(&config(network, own.clone(), more))
    }
}

/// A configuration of the plugin. A later key replaces an earlier one, and `null` removes it.
pub fn config(network: &str, own: Value, more: Value) -> String {
    let mut config = json!({"cniVersion": "1.1.0", "name": network, "type": "netclaim-link"});
    let members = config.as_object_mut().unwrap();
    for part in [own, more] {
        members.extend(part.as_object().unwrap().clone());
    }
    members.retain(|_, value| !value.is_null());
    config.to_string()
}
