//! `netclaimctl capture`: what passes through an interface of a pod, in the format of tcpdump.
//!
//! ```text
//!   API server ── claims ──> the pod's node and interface
//!              └─ exec in its agent's pod ──> pcap ──> a file, or standard output
//! ```

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use netclaim_api::IfName;
use netclaim_cni::error_chain;

use crate::asking::exec::{NotAsked, exec_into};
use crate::attachments::{Attachment, Chosen, find};
use crate::cluster::{Connection, ReadError};
use crate::components::{agents, agents_of};
use crate::print::failed;
use crate::printable::printable;

/// `netclaimctl capture`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The pod
    pub pod: String,
    /// The pod's namespace [default: that of the context]
    #[arg(long, short)]
    pub namespace: Option<String>,
    /// The interface in the pod [default: its only claimed one]
    #[arg(long, short, value_name = "NAME")]
    pub interface: Option<IfName>,
    /// Writes into this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Ends after so many frames
    #[arg(long, short, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Ends after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub duration: u64,
    /// Copies so many bytes of each frame, from the first one
    #[arg(long, short, value_name = "BYTES", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub snaplen: u32,
    /// The namespace in which netclaim is installed
    #[arg(long, default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

/// Why nothing is copied.
#[derive(Debug, thiserror::Error)]
enum CaptureError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(
        "standard output is a terminal: write into a file with --write FILE, or read it with | tcpdump -nr -"
    )]
    Terminal,
    #[error("cannot write {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("pod {namespace}/{pod} has no claimed interface{} that is attached: netclaimctl explain pod {pod} --namespace {namespace}", of(.interface.as_ref()))]
    NoInterface { namespace: String, pod: String, interface: Option<IfName> },
    #[error("pod {namespace}/{pod} has the interfaces {}: choose one with --interface", names.join(", "))]
    Several { namespace: String, pod: String, names: Vec<String> },
    #[error(
        "node {node} has no agent of netclaim in namespace {namespace}: is netclaim installed in another one (--netclaim-namespace)?"
    )]
    NoAgent { node: String, namespace: String },
    #[error("node {node}")]
    Agent { node: String, source: NotAsked },
}

fn of(interface: Option<&IfName>) -> String {
    interface.map(|name| format!(" {name}")).unwrap_or_default()
}

/// Copies what passes through the interface. Fails if the agent does not allow it, or cannot be asked.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    match capture(&args, out, err).await {
        // A reader that has closed the pipe has what it wants.
        Ok(said) if said.is_empty() => ExitCode::SUCCESS,
        Ok(said) => {
            let _ = writeln!(err, "netclaimctl: {}", printable(&said));
            ExitCode::SUCCESS
        }
        Err(error) => failed(err, error_chain(&error)),
    }
}

async fn capture(
    args: &Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> Result<String, CaptureError> {
    if args.write.is_none() && io::stdout().is_terminal() {
        return Err(CaptureError::Terminal);
    }
    let client = args.connection.client().await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let chosen =
        Chosen { namespace: Some(namespace.clone()), pod: Some(args.pod.clone()), ..Chosen::default() };
    let found = find(&client, &chosen, |_| true).await?;
    let (interface, node) = the_one(&namespace, args, &found.attachments)?;
    let pods = agents_of(&client, &args.netclaim_namespace).await?;
    let agents = agents(&pods);
    let no_agent =
        || CaptureError::NoAgent { node: node.clone(), namespace: args.netclaim_namespace.clone() };
    let agent = agents.get(node.as_str()).ok_or_else(no_agent)?;
    let [count, seconds, snaplen] =
        [args.count.unwrap_or(u64::MAX), args.duration, args.snaplen.into()].map(|number| number.to_string());
    let flags = [
        ("--namespace", &namespace),
        ("--pod", &args.pod),
        ("--interface", &interface),
        ("--count", &count),
        ("--seconds", &seconds),
        ("--snaplen", &snaplen),
    ];
    let mut words = vec!["capture"];
    words.extend(flags.iter().flat_map(|(flag, value)| [flag, value.as_str()]));
    let _ = writeln!(err, "netclaimctl: {interface} of pod {namespace}/{} on node {node}", args.pod);
    let asking = args.connection.client_without_retries().await?;
    let copied = match &args.write {
        Some(path) => {
            let file =
                File::create(path).map_err(|error| CaptureError::File { path: path.clone(), source: error });
            exec_into(&asking, agent, &words, &mut file?).await
        }
        None => exec_into(&asking, agent, &words, out).await,
    };
    copied.map_err(|source| CaptureError::Agent { node, source })
}

/// The interface that is meant, and its node.
fn the_one(namespace: &str, args: &Args, all: &[Attachment]) -> Result<(String, String), CaptureError> {
    let (namespace, pod) = (namespace.to_owned(), args.pod.clone());
    let known = all.iter().filter_map(|one| Some((one.interface.clone()?, one.node.clone()?)));
    let wanted = |name: &str| args.interface.as_ref().is_none_or(|interface| interface.as_str() == name);
    let found: Vec<(String, String)> = known.filter(|(name, _)| wanted(name)).collect();
    match <[_; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(none) if none.is_empty() => {
            Err(CaptureError::NoInterface { namespace, pod, interface: args.interface.clone() })
        }
        Err(several) => {
            let names = several.into_iter().map(|(name, _)| name).collect();
            Err(CaptureError::Several { namespace, pod, names })
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::{Cli, Command};

    fn args(line: &[&str]) -> Args {
        let line = ["netclaimctl", "capture"].iter().chain(line);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Capture(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_only_interface_is_meant_unless_one_is_named() {
        let attachment = |name: &str| Attachment {
            interface: Some(name.to_owned()),
            node: Some("a".to_owned()),
            ..Attachment::default()
        };
        let of = |line: &[&str], names: &[&str]| {
            let all: Vec<Attachment> = names.iter().map(|name| attachment(name)).collect();
            the_one("shop", &args(line), &all).map(|(name, _)| name).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["web"], &["net1"]).unwrap(), "net1");
        assert_eq!(of(&["web", "-i", "net2"], &["net1", "net2"]).unwrap(), "net2");
        assert_eq!(
            of(&["web"], &["net1", "net2"]).unwrap_err(),
            "pod shop/web has the interfaces net1, net2: choose one with --interface"
        );
        let none = of(&["web", "-i", "eth0"], &["net1"]).unwrap_err();
        assert!(none.starts_with("pod shop/web has no claimed interface eth0 that is attached"), "{none}");
    }

    #[test]
    fn limits_are_refused_where_they_are_none() {
        for wrong in [["-c", "0"], ["--duration", "0"], ["-s", "0"], ["-i", "a/b"]] {
            let line = ["netclaimctl", "capture", "web"].iter().chain(&wrong);
            assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
        }
    }
}
