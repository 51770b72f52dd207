//! The node agent's executable: arguments, log, run. Its command `cni` is for people in its container, and
//! `ask` for netclaimctl, which runs it there.

use std::env;
use std::ffi::OsStr;
use std::io::{Write as _, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use netclaim_api::history::Subject;
use netclaim_api::ping::{Endpoint, Ping};
use netclaim_api::question::{CaptureOf, Question};
use netclaim_api::traffic::Selection;
use netclaim_api::{IfName, NetworkName};
use netclaim_cni::error_chain;
use netclaim_cni::spans::SPANS;
use netclaim_driver::links::{Capture, MAX_SNAPLEN};
use netclaim_kubelet_plugin::{Args, capture, questions, run_agent, service};
use netclaim_process::log;
use netclaim_process::traces::Traces;

/// CNI networks by hand, as `netclaimctl cni`, which the agent's image does not have.
#[derive(clap::Parser)]
#[command(name = "netclaim-kubelet-plugin cni")]
struct CniByHand {
    #[command(flatten)]
    args: netclaim_cnitool::Args,
}

/// Asks the working agent of the node. It answers in JSON.
#[derive(clap::Parser)]
#[command(name = "netclaim-kubelet-plugin ask")]
struct Ask {
    /// The agent's
    #[arg(long, env = "NETCLAIM_RUN_DIR", default_value = "/run/netclaim")]
    run_dir: PathBuf,
    #[command(subcommand)]
    asked: Asked,
}

#[derive(clap::Subcommand)]
enum Asked {
    /// What an attachment to a ClaimNetwork would be
    Network {
        /// Its name
        name: NetworkName,
    },
    /// Which pods have and had an address, or what a pod has and had, since the node has started
    Who {
        /// IP address, MAC address, or NAMESPACE/POD
        subject: Subject,
    },
    /// What attachments receive and send, measured for a second
    Traffic {
        /// Only of pods of this namespace
        #[arg(long)]
        namespace: Option<String>,
        /// Only of this pod
        #[arg(long, requires = "namespace")]
        pod: Option<String>,
    },
    /// What the network passes between nodes or pods that are asked at the same time
    Ping {
        /// The ClaimNetwork
        network: NetworkName,
        /// The number of the run
        #[arg(long)]
        run: u64,
        /// The VLAN id on uplinks
        #[arg(long)]
        vlan: Option<u16>,
        /// All that take part: NODE, or NODE:NAMESPACE/POD
        endpoints: Vec<Endpoint>,
    },
}

fn main() -> ExitCode {
    match env::args_os().nth(1).as_deref().and_then(OsStr::to_str) {
        Some("cni") => return cni_by_hand(),
        Some("ask") => return ask(),
        Some("capture") => return copy_frames(),
        _ => {}
    }
    let args = Args::parse();
    let traces = Traces::from_env(&service(&args));
    log::init(&args.log, "", traces.as_ref().map(|traces| traces.layer(SPANS)));
    run_agent(args, traces).unwrap_or_else(|error| {
        tracing::error!("{error:#}");
        ExitCode::FAILURE
    })
}

#[tokio::main(flavor = "current_thread")]
async fn cni_by_hand() -> ExitCode {
    let CniByHand { args } = CniByHand::parse_from(env::args_os().skip(1));
    netclaim_cnitool::run("netclaim-kubelet-plugin", args, &mut stdout(), &mut stderr()).await
}

#[tokio::main(flavor = "current_thread")]
async fn ask() -> ExitCode {
    let Ask { run_dir, asked } = Ask::parse_from(env::args_os().skip(1));
    let question = match asked {
        Asked::Network { name } => Question::Network(name),
        Asked::Who { subject } => Question::Who(subject),
        Asked::Traffic { namespace, pod } => Question::Traffic(Selection { namespace, pod }),
        Asked::Ping { network, run, vlan, endpoints } => {
            Question::Ping(Ping { network, run, vlan, endpoints })
        }
    };
    match questions::ask(&run_dir, &question).await {
        // Nobody reads on where standard output is closed.
        Ok(answer) => drop(stdout().write_all(answer.as_bytes())),
        Err(error) => {
            eprintln!("netclaim-kubelet-plugin: {}", error_chain(&error));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Copies what passes through an attachment of this node to standard output, in the format of tcpdump. It
/// ends with its standard input.
#[derive(clap::Parser)]
#[command(name = "netclaim-kubelet-plugin capture")]
struct CopyFrames {
    /// The agent's
    #[arg(long, env = "NETCLAIM_RUN_DIR", default_value = "/run/netclaim")]
    run_dir: PathBuf,
    /// The pod's namespace
    #[arg(long)]
    namespace: String,
    /// The pod
    #[arg(long)]
    pod: String,
    /// The interface in the pod
    #[arg(long)]
    interface: IfName,
    /// Most frames
    #[arg(long, default_value_t = u64::MAX)]
    count: u64,
    /// Longest time, in seconds
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Bytes of each frame that are copied
    #[arg(long, default_value_t = MAX_SNAPLEN)]
    snaplen: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn copy_frames() -> ExitCode {
    let CopyFrames { run_dir, namespace, pod, interface, count, seconds, snaplen } =
        CopyFrames::parse_from(env::args_os().skip(1));
    let what = Capture { snaplen, count, time: Duration::from_secs(seconds) };
    match capture::capture(&run_dir, CaptureOf { namespace, pod, interface }, what).await {
        Ok(count) => {
            eprintln!("{count} frames");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}
