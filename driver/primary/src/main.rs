//! `netclaim-primary`: the CNI plugin that the container runtime runs for the pods of one RuntimeClass. Their
//! `eth0` is a network that they claim.
//!
//! The plugin makes no interface. It asks the node's agent, which has prepared the pod's claim:
//!
//! ```text
//!   container runtime --ADD--> netclaim-primary --socket--> agent --ADD--> plugins of the ClaimNetwork
//!                     <result-                  <-result---       <result-
//! ```
//!
//! * ADD asks for 3 min, an agent that is away for 20 s, and prints the result as the agent gives it. Then it
//!   fails with code 11, "try again later". No pod gets the cluster's network instead.
//! * DEL asks for 10 s, an agent that is away for 2 s, and then always succeeds. The agent's journal owes the
//!   DEL of the plugins, and a DEL that fails would keep the pod Terminating.
//! * CHECK, STATUS and GC succeed without the agent: no node is not ready because its agent is away, and the
//!   agent looks after what it has made.
//! * Configuration: `socket`, the agent's socket. The agent writes the list, which has this plugin only.
//! * CNI 0.3.0 to 1.1.0.
//!
//! # Limitations
//! * ADD refuses hostPorts of containers. The AttachmentConfig's `portMappings` take their place.
//! * The runtime must pass the pod's UID (`K8S_POD_UID` in `CNI_ARGS`), as containerd does.
#![forbid(unsafe_code)]

mod ask;
#[cfg(test)]
mod tests;

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use netclaim_plugin::{Config, Failure, Plugin, variable};
use serde::Deserialize;

use ask::{Patience, Question, ask};

/// How long an ADD waits for the agent's answer. The agent gives the plugins of a network 40 s by default,
/// and its error says more than that the time is over. The kubelet ends the call after 4 min.
const ADD_PATIENCE: Patience = Patience { busy: Duration::from_secs(180), away: Duration::from_secs(20) };
/// How long a DEL does. The agent answers within 8 s. The runtime repeats it three or four times for a
/// sandbox, and the next agent finds out by itself that the sandbox is gone.
const DEL_PATIENCE: Patience = Patience { busy: Duration::from_secs(10), away: Duration::from_secs(2) };
/// The interface that Kubernetes takes a pod's addresses from.
const INTERFACE: &str = "eth0";

struct Primary;

fn main() -> ExitCode {
    netclaim_plugin::main::<Primary>()
}

impl Plugin for Primary {
    const ABOUT: &'static str = "netclaim-primary: the CNI plugin of pods whose eth0 is a claimed network";
    const KEYS: &'static [&'static str] = &["socket"];

    fn add(config: &Config) -> Result<String, Failure> {
        add(config, &Call::read(), ADD_PATIENCE)
    }

    fn del(config: &Config) -> Result<(), Failure> {
        del(config, &Call::read(), DEL_PATIENCE);
        Ok(())
    }

    /// containerd never calls it.
    fn check(_: &Config) -> Result<(), Failure> {
        Ok(())
    }

    /// The agent's journal has all that the plugin has asked for.
    fn gc(_: &Config) -> Result<(), Failure> {
        Ok(())
    }
}

/// What the runtime says of the sandbox; none of it need be there in a DEL.
#[derive(Debug, Clone, Default)]
struct Call {
    interface: Option<String>,
    sandbox: Option<String>,
    netns: Option<String>,
    /// The pod's UID.
    pod: Option<String>,
}

impl Call {
    fn read() -> Self {
        Self {
            interface: variable("CNI_IFNAME"),
            sandbox: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            pod: variable("CNI_ARGS").and_then(|args| pod_uid(&args)),
        }
    }
}

/// Finds the pod's UID in `CNI_ARGS`, which are `KEY=VALUE;KEY=VALUE`.
fn pod_uid(args: &str) -> Option<String> {
    let uid = args.split(';').find_map(|pair| pair.strip_prefix("K8S_POD_UID="))?;
    Some(uid.to_owned()).filter(|uid| !uid.is_empty())
}

fn add(config: &Config, call: &Call, patience: Patience) -> Result<String, Failure> {
    let interface = required(&call.interface, "CNI_IFNAME")?;
    if interface != INTERFACE {
        let problem = format!(
            "{interface:?} is not {INTERFACE}, which is all that netclaim-primary is for: name it in no ClaimNetwork, only in the \
             CNI configuration of a RuntimeClass's handler, which the agent writes"
        );
        return Err(Failure::environment("CNI_IFNAME", problem));
    }
    let pod = call.pod.as_deref().ok_or_else(|| {
        let problem =
            "has no K8S_POD_UID: use a container runtime that passes it, such as containerd 2.2 or newer";
        Failure::environment("CNI_ARGS", problem)
    })?;
    refuse_host_ports(config)?;
    let socket = socket(config)?;
    let question = Question {
        command: "ADD",
        sandbox: required(&call.sandbox, "CNI_CONTAINERID")?,
        netns: Some(required(&call.netns, "CNI_NETNS")?),
        pod,
    };
    let result = ask(&socket, &question, patience)?;
    if result.starts_with('{') {
        Ok(result)
    } else {
        Err(ask::no_answer(&socket, "its result is not an object"))
    }
}

fn del(config: &Config, call: &Call, patience: Patience) {
    let (Some(sandbox), Some(pod)) = (&call.sandbox, &call.pod) else { return };
    let question = Question { command: "DEL", sandbox, netns: None, pod };
    if let Err(failure) = socket(config).and_then(|socket| ask(&socket, &question, patience)) {
        // The runtime's log gets it.
        let _ = writeln!(
            io::stderr(),
            "netclaim-primary: DEL of sandbox {sandbox:?}: {failure}; the agent's journal keeps what is left to do"
        );
    }
}

fn required<'a>(value: &'a Option<String>, name: &'static str) -> Result<&'a str, Failure> {
    value.as_deref().ok_or_else(|| Failure::environment(name, "is not set"))
}

fn socket(config: &Config) -> Result<String, Failure> {
    config.field("socket")?.ok_or_else(|| {
        let problem =
            "is missing: delete the file of this configuration, and restart netclaim's agent of this node, which writes it again";
        Failure::config("socket", problem)
    })
}

#[derive(Deserialize)]
struct RuntimeConfig {
    #[serde(rename = "portMappings")]
    port_mappings: Option<Vec<PortMapping>>,
}

#[derive(Deserialize)]
struct PortMapping {
    #[serde(rename = "hostPort")]
    host_port: u32,
}

/// Nothing would lead from the node's ports to the pod, and nobody would say so.
fn refuse_host_ports(config: &Config) -> Result<(), Failure> {
    let given: Option<RuntimeConfig> = config.field("runtimeConfig")?;
    match given.and_then(|given| given.port_mappings).as_deref() {
        None | Some([]) => Ok(()),
        Some([PortMapping { host_port }, ..]) => {
            let problem = format!(
                "the hostPort {host_port} of a container is not served on a claimed network: remove hostPorts from the pod, and write \
                 portMappings in the AttachmentConfig of its claim or class"
            );
            Err(Failure::config("runtimeConfig.portMappings", problem))
        }
    }
}
