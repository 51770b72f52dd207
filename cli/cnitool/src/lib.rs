//! CNI networks by hand: the operations of cnitool, with its command line and environment, and more.
//!
//! It is the command `cni` of two programs: of `netclaimctl`, and of `netclaim-kubelet-plugin` for the
//! agent's container, whose image has no netclaimctl.
//!
//! * `add` prints the result of the last plugin to standard output. A failure is printed there as an error
//!   object of the specification, with exit status 1, and for people to standard error.
//! * [`Attachments`](netclaim_cni::Attachments) caches an attachment before its first plugin runs. `del` and
//!   `check` use the cached configuration, arguments and result, even if files and variables have changed.
//!   They wait for other processes that work on the same container or network.

mod columns;
mod failure;
mod networks;
mod settings;

use std::fmt::Display;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use netclaim_api::template;
use netclaim_cni::error_chain;
use netclaim_cni::validate::{Severity, validate};
use netclaim_cni::{AddOutcome, Attachment, Cache, Cached, ListName, Runtime, ValidAttachment};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

pub use columns::columns;
pub use failure::Failure;
pub use networks::{LoadError, files, load};
pub use settings::{DEFAULT_SOCKETS, SettingError, Settings};

/// How long a killed plugin may take to exit.
const KILLED: Duration = Duration::from_millis(200);

/// The exit code of a program that was interrupted.
const INTERRUPTED: u8 = 130;

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Settings that cnitool reads from its environment.
    #[command(flatten)]
    pub settings: Settings,
    /// The operation.
    #[command(subcommand)]
    pub operation: Operation,
}

/// The operations.
#[derive(Debug, Subcommand)]
pub enum Operation {
    /// Attaches a network namespace to a network, and prints the result
    Add(Target),
    /// Detaches a network namespace from a network.
    ///
    /// Until every plugin has succeeded, addresses stay taken and the attachment stays known.
    Del {
        /// What to detach
        #[command(flatten)]
        target: Target,
        /// If the namespace is gone, go on past plugins that fail: free the addresses and forget the
        /// attachment
        #[arg(long)]
        give_up: bool,
    },
    /// Checks that an attachment is as `add` left it
    Check(Target),
    /// Asks the network's plugins whether they could attach something now
    Status {
        /// The network's name
        network: String,
        /// Ignored, as by cnitool
        netns: Option<PathBuf>,
    },
    /// Deletes attachments whose namespace is gone, then has the plugins delete what belongs to no known
    /// attachment.
    ///
    /// Known are the attachments that `attachments` shows. Those that others made in a network of the same
    /// name, such as kubelet's container runtime, are not: name them by --keep.
    Gc {
        /// The network's name
        network: String,
        /// Ignored, as by cnitool
        netns: Option<PathBuf>,
        /// An attachment of others that plugins must leave alone; may be repeated
        #[arg(long, value_name = "CONTAINERID/IFNAME")]
        keep: Vec<String>,
    },
    /// Says what is wrong with network configurations, without running anything
    Validate {
        /// Files to look at; without any, all in NETCONFPATH
        files: Vec<PathBuf>,
        /// The files are templates: nothing is said about texts with ${…} in them
        #[arg(long)]
        template: bool,
        /// Print a JSON list
        #[arg(long)]
        json: bool,
    },
    /// Serves plugins on sockets, for agents with --cni-daemons, until it is ended.
    ///
    /// Run it in a container that has what the plugins need, such as iptables.
    Serve {
        /// A plugin to serve; may be repeated
        #[arg(long = "type", value_name = "TYPE", required = true)]
        types: Vec<String>,
        /// Directory of the plugins, and of those that they run themselves; may be repeated
        #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
        bin: Vec<PathBuf>,
        /// Directory of the sockets
        #[arg(long, value_name = "DIR", default_value = DEFAULT_SOCKETS)]
        sockets: PathBuf,
    },
    /// Lists the attachments made by `add`
    Attachments {
        /// Print a JSON list
        #[arg(long)]
        json: bool,
    },
}

/// A network and a network namespace.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The network's name
    pub network: String,
    /// Path of the network namespace, such as /run/netns/test
    pub netns: PathBuf,
}

/// Messages of the command for people.
struct Messages<'a> {
    program: &'a str,
    err: &'a mut (dyn Write + Send),
}

impl Messages<'_> {
    /// If standard error is closed, no one reads it.
    fn say(&mut self, message: impl Display) {
        let _ = writeln!(self.err, "{}: {message}", self.program);
    }
}

/// Runs the operation. `program` is what the user has called: messages for people begin with it.
///
/// CNI plugins inherit none of the caller's open files. SIGINT and SIGTERM end the command.
pub async fn run(
    program: &str,
    args: Args,
    out: &mut (dyn Write + Send),
    err: &mut (dyn Write + Send),
) -> ExitCode {
    let mut messages = Messages { program, err };
    if let Err(error) = netclaim_cni::close_inherited_descriptors() {
        messages.say(format_args!("cannot close inherited descriptors: {error}"));
        return ExitCode::FAILURE;
    }
    let (mut term, mut int) = match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(term), Ok(int)) => (term, int),
        (Err(error), _) | (_, Err(error)) => {
            messages.say(format_args!("cannot listen for signals: {error}"));
            return ExitCode::FAILURE;
        }
    };
    if let Operation::Serve { types, bin, sockets } = &args.operation {
        let end = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        return match serve(program, types, bin, sockets, end).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                messages.say(error_chain(&failure));
                ExitCode::FAILURE
            }
        };
    }
    let performed = tokio::select! {
        performed = perform(&args, out, &mut messages) => Some(performed),
        _ = term.recv() => None,
        _ = int.recv() => None,
    };
    match performed {
        Some(Ok(code)) => code,
        Some(Err(failure)) => {
            // If the output is closed, no one reads the error.
            let _ = writeln!(out, "{:#}", failure.object());
            messages.say(error_chain(&failure));
            ExitCode::FAILURE
        }
        None => {
            // Plugins have their own process groups, so the terminal does not interrupt them; the drop of
            // `perform` kills them.
            messages.say(
                "interrupted; what was begun is not finished: `cni attachments` shows what to `cni del`",
            );
            tokio::time::sleep(KILLED).await;
            INTERRUPTED.into()
        }
    }
}

async fn perform(
    args: &Args,
    out: &mut (dyn Write + Send),
    messages: &mut Messages<'_>,
) -> Result<ExitCode, Failure> {
    let Args { settings, operation } = args;
    match operation {
        Operation::Add(target) => add(settings, target, out).await?,
        Operation::Del { target, give_up } => del(settings, target, *give_up, messages).await?,
        Operation::Check(target) => check(settings, target).await?,
        Operation::Status { network, netns: _ } => {
            let list = networks::load(settings.netconf_dir(), &name(network)?)?;
            settings.runtime()?.status(&list, settings.deadline()).await?;
        }
        Operation::Gc { network, netns: _, keep } => gc(settings, &name(network)?, keep, messages).await?,
        Operation::Validate { files, template, json } => {
            return validate_files(settings, files, *template, *json, out);
        }
        // Ended by signals of its own.
        Operation::Serve { .. } => {}
        Operation::Attachments { json } => attachments(&settings.cache(), *json, out, messages)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    program: &str,
    types: &[String],
    bin: &[PathBuf],
    sockets: &Path,
    end: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let runtime = Runtime::new(bin.to_vec()).map_err(SettingError::CniPath)?;
    let types =
        types.iter().map(|name| name.parse().map_err(Failure::Type)).collect::<Result<Vec<_>, _>>()?;
    let program = program.to_owned();
    let log = move |text: &str| eprintln!("{program}: {text}");
    Ok(netclaim_cni::serve(runtime, &types, sockets, log, end).await?)
}

fn name(network: &str) -> Result<ListName, Failure> {
    network.parse().map_err(Failure::Name)
}

async fn add(settings: &Settings, target: &Target, out: &mut (dyn Write + Send)) -> Result<(), Failure> {
    let list = networks::load(settings.netconf_dir(), &name(&target.network)?)?;
    let attachment = settings.attachment(&target.netns)?;
    let result = settings.attachments()?.add(&list, &attachment, settings.deadline()).await?;
    Ok(writeln!(out, "{}", result.raw())?)
}

async fn del(
    settings: &Settings,
    target: &Target,
    give_up: bool,
    messages: &mut Messages<'_>,
) -> Result<(), Failure> {
    let (attachments, attachment) = (settings.attachments()?, settings.attachment(&target.netns)?);
    let network = name(&target.network)?;
    // The file is used only if the cache does not know the attachment, and need not exist otherwise.
    let list = match networks::load(settings.netconf_dir(), &network) {
        Ok(list) => list,
        Err(error) => match attachments.cache().load(&network, &attachment.container_id, &attachment.if_name)
        {
            Ok(Some(known)) => known.list,
            _ => return Err(error.into()),
        },
    };
    let request = Cached { list, attachment, outcome: AddOutcome::Unfinished(None) };
    if !give_up {
        return Ok(attachments.del(&request, settings.deadline()).await?);
    }
    for error in attachments.give_up(&request, settings.deadline()).await? {
        messages.say(format_args!("given up, something may be left: {}", error_chain(&error)));
    }
    Ok(())
}

async fn check(settings: &Settings, target: &Target) -> Result<(), Failure> {
    let attachment = settings.attachment(&target.netns)?;
    Ok(settings.attachments()?.check(&name(&target.network)?, &attachment, settings.deadline()).await?)
}

async fn gc(
    settings: &Settings,
    network: &ListName,
    keep: &[String],
    messages: &mut Messages<'_>,
) -> Result<(), Failure> {
    let list = networks::load(settings.netconf_dir(), network)?;
    let keep = keep.iter().map(|text| kept(text)).collect::<Result<Vec<_>, _>>()?;
    let done = settings.attachments()?.gc(&list, &keep, settings.deadline()).await?;
    for ValidAttachment { container_id, if_name } in done.deleted {
        messages.say(format_args!("deleted interface `{if_name}` of container `{container_id}`"));
    }
    if done.failed.is_empty() { Ok(()) } else { Err(Failure::Gc(done.failed)) }
}

fn kept(text: &str) -> Result<ValidAttachment, Failure> {
    let parse = || {
        let (container_id, if_name) = text.split_once('/')?;
        Some(ValidAttachment { container_id: container_id.parse().ok()?, if_name: if_name.parse().ok()? })
    };
    parse().ok_or_else(|| Failure::Keep(text.to_owned()))
}

fn validate_files(
    settings: &Settings,
    files: &[PathBuf],
    template: bool,
    json: bool,
    out: &mut (dyn Write + Send),
) -> Result<ExitCode, Failure> {
    let files = if files.is_empty() { networks::files(settings.netconf_dir())? } else { files.to_vec() };
    let mut all = Vec::new();
    for path in files {
        let text = read(&path)?;
        let findings = if template { template::validate(&text) } else { validate(&text) };
        all.extend(findings.into_iter().map(|finding| (path.clone(), finding)));
    }
    if json {
        let object = |(path, finding): &(PathBuf, _)| -> serde_json::Result<Value> {
            let mut object = serde_json::to_value::<&netclaim_cni::validate::Finding>(finding)?;
            if let Some(object) = object.as_object_mut() {
                object.insert("file".to_owned(), json!(path.to_string_lossy()));
            }
            Ok(object)
        };
        writeln!(out, "{:#}", Value::Array(all.iter().map(object).collect::<Result<_, _>>()?))?;
    } else {
        for (path, finding) in &all {
            writeln!(out, "{}: {finding}", path.display())?;
        }
    }
    let bad = all.iter().any(|(_, finding)| finding.severity == Severity::Error);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|source| Failure::Read { path: path.to_owned(), source })
}

fn attachments(
    cache: &Cache,
    json: bool,
    out: &mut (dyn Write + Send),
    messages: &mut Messages<'_>,
) -> Result<(), Failure> {
    let (known, unusable) = cache.attachments()?;
    for error in &unusable {
        messages.say(error_chain(error));
    }
    let netns = |of: &Cached| of.attachment.netns.as_ref().map(|path| path.to_string_lossy().into_owned());
    let ips = |of: &Cached| -> Vec<String> {
        let ips = of.outcome.result().into_iter().flat_map(|result| result.ips_of(&of.attachment));
        ips.map(|ip| ip.address.to_string()).collect()
    };
    let attached = |of: &Cached| matches!(of.outcome, AddOutcome::Attached(_));
    if json {
        let object = |of: &Cached| {
            json!({"network": of.list.name().as_str(), "containerID": of.attachment.container_id.as_str(),
                   "ifname": of.attachment.if_name.as_str(), "netns": netns(of), "ips": ips(of),
                   "attached": attached(of)})
        };
        writeln!(out, "{:#}", Value::Array(known.iter().map(object).collect()))?;
        return Ok(());
    }
    let rows = known.iter().map(|of| {
        let Attachment { container_id, if_name, .. } = &of.attachment;
        let addresses = if attached(of) { ips(of).join(",") } else { "(ADD failed)".to_owned() };
        let (network, netns) = (of.list.name().to_string(), netns(of).unwrap_or_default());
        vec![network, container_id.to_string(), if_name.to_string(), netns, addresses]
    });
    let head = ["NETWORK", "CONTAINER", "INTERFACE", "NETNS", "ADDRESSES"].map(str::to_owned).into();
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    Ok(out.write_all(columns(&rows, |cell| cell, String::clone).as_bytes())?)
}
