//! What netclaim's CNI plugins share: the plugin's side of the protocol, and requests over rtnetlink. A
//! plugin implements [`Plugin`], and its `main` is [`main`].
//!
//! * CNI 0.3.0 to 1.1.0. Errors and their codes are those of [`Failure`].
//! * DEL and GC ignore keys that the plugin does not know: no ADD has succeeded with them, and a DEL that
//!   always fails is retried for ever.
#![forbid(unsafe_code)]

mod config;
mod failure;
pub mod link;
mod netns;
mod requests;
pub mod rtnl;
mod version;

use std::env;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use serde_json::json;

pub use config::{Config, Object};
pub use failure::Failure;
pub use netns::{enter_if_there, enter_required};
pub use requests::Requests;
use version::{NEWEST, SUPPORTED};

/// A configuration is a few kilobytes; a previous result with thousands of routes still fits.
const MAX_CONFIG: u64 = 16 << 20;

/// A CNI plugin.
pub trait Plugin {
    /// What a person who starts the program reads: its name, and what it is.
    const ABOUT: &'static str;
    /// The keys of the plugin's object that only this plugin reads.
    const KEYS: &'static [&'static str];

    /// Runs ADD, and returns the result to print.
    fn add(config: &Config) -> Result<String, Failure>;

    /// Runs DEL.
    fn del(config: &Config) -> Result<(), Failure>;

    /// Runs CHECK.
    fn check(config: &Config) -> Result<(), Failure>;

    /// Runs GC.
    fn gc(config: &Config) -> Result<(), Failure>;

    /// Runs STATUS.
    fn status(_config: &Config) -> Result<(), Failure> {
        Ok(())
    }
}

/// Runs the operation that the runtime asks for.
pub fn main<P: Plugin>() -> ExitCode {
    let Some(command) = env::var_os("CNI_COMMAND") else {
        eprintln!("{}, to be run by a container runtime; CNI {}", P::ABOUT, SUPPORTED.join(", "));
        return ExitCode::SUCCESS;
    };
    let mut version = NEWEST.to_owned();
    let (answer, code) = match run::<P>(&command.to_string_lossy(), &mut version) {
        Ok(answer) => (answer, ExitCode::SUCCESS),
        Err(failure) => (Some(failure.to_json(&version).to_string()), ExitCode::FAILURE),
    };
    let printed = answer.map_or(Ok(()), |answer| writeln!(io::stdout(), "{answer}"));
    if printed.is_err() { ExitCode::FAILURE } else { code }
}

/// Runs an operation and returns what to print. Sets `version` to the configuration's as soon as it is known.
fn run<P: Plugin>(command: &str, version: &mut String) -> Result<Option<String>, Failure> {
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_CONFIG).read_to_end(&mut input).map_err(Failure::Stdin)?;
    if command == "VERSION" {
        *version = config::version_of(&input).unwrap_or_else(|| NEWEST.to_owned());
        return Ok(Some(json!({"cniVersion": version, "supportedVersions": SUPPORTED}).to_string()));
    }
    let config = Config::parse(&input)?;
    version.clone_from(&config.version);
    match command {
        "DEL" => return P::del(&config).map(|()| None),
        "GC" => return config.has_operation("1.1.0", command).and_then(|()| P::gc(&config)).map(|()| None),
        _ => config.knows(P::KEYS)?,
    }
    match command {
        "ADD" => P::add(&config).map(Some),
        "CHECK" => config.has_operation("0.4.0", command).and_then(|()| P::check(&config)).map(|()| None),
        "STATUS" => config.has_operation("1.1.0", command).and_then(|()| P::status(&config)).map(|()| None),
        _ => Err(Failure::environment(
            "CNI_COMMAND",
            format!("{command:?} is not one of ADD, DEL, CHECK, STATUS, GC, VERSION"),
        )),
    }
}

/// Returns a variable of the environment; an empty one counts as missing.
pub fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the name of the container's interface; the container's id must be there, too.
pub fn interface() -> Result<String, Failure> {
    let name = required("CNI_IFNAME")?;
    required("CNI_CONTAINERID")?;
    Ok(name)
}

/// Returns a variable of the environment that the protocol requires.
pub fn required(name: &'static str) -> Result<String, Failure> {
    variable(name).ok_or_else(|| Failure::environment(name, "is not set"))
}
