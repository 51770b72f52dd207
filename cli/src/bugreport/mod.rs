//! `netclaimctl bugreport`: what a maintainer needs to find a bug, in one archive. Secrets are removed as far
//! as they are recognised.
//!
//! ```text
//!   API server ── pages, logs ──> selection, redaction (pure) ──> archive: bounded files, a README ──> FILE.tar.gz
//! ```
//!
//! Invariants:
//! * It reads, and never reads Secrets or ConfigMaps.
//! * No text reaches the archive without the redaction of texts, and no object without that of objects.
//! * What cannot be read is noted in the archive, and does not stop the report.

mod archive;
mod collect;
pub(crate) mod redaction;
mod selection;
mod value;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use netclaim_cni::error_chain;
use tempfile::NamedTempFile;

use self::archive::Archive;
use self::collect::Collector;
use self::redaction::Redaction;
use crate::cluster::{Connection, ReadError};
use crate::print::failed;

/// `netclaimctl bugreport`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The archive, which must not exist; `-` is standard output [default: netclaim-bugreport-TIME.tar.gz]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// How old logs and events may be, such as 30m or 24h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = age)]
    pub since: SignedDuration,
    /// The namespace in which netclaim is installed
    #[arg(long, visible_alias = "namespace", short = 'n', default_value = "netclaim-system")]
    pub netclaim_namespace: String,
    /// Which cluster
    #[command(flatten)]
    pub connection: Connection,
}

fn age(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(age) if age.is_positive() => Ok(age),
        Ok(_) => Err("it is not more than 0".to_owned()),
        Err(_) => Err("it is not a duration: write 30m or 24h".to_owned()),
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Connect(#[from] ReadError),
    #[error("the cluster does not answer")]
    Unreachable(#[source] kube::Error),
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("nothing can be read: {0}")]
    Nothing(String),
    #[error("cannot search for secrets")]
    Redaction(#[from] regex::Error),
}

/// Writes the archive, and prints its name. Fails if nothing can be read or the archive cannot be written.
pub async fn run(args: Args, out: &mut (dyn Write + Send), err: &mut (dyn Write + Send)) -> ExitCode {
    let missing = match written(&args, out).await {
        Ok(missing) => missing,
        Err(failure) => return failed(err, error_chain(&failure)),
    };
    for what in &missing {
        let _ = writeln!(err, "netclaimctl: not in the report: {what}");
    }
    let _ = writeln!(
        err,
        "netclaimctl: look through the archive before you give it to others: its README.md says what it has"
    );
    ExitCode::SUCCESS
}

/// Returns what could not be read.
async fn written(args: &Args, out: &mut (dyn Write + Send)) -> Result<Vec<String>, Failure> {
    let now = Timestamp::now();
    let path = args.output.clone().unwrap_or_else(|| default_name(now));
    let failed = |source| Failure::Write { path: path.clone(), source };
    // It takes minutes to read a big cluster, and the end is too late to notice this.
    if path != Path::new("-") && fs::symlink_metadata(&path).is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    let clients = [args.connection.client().await?, args.connection.client_without_retries().await?];
    if path == Path::new("-") {
        let (archive, missing) = report(clients, args, now, Vec::new(), &path).await?;
        out.write_all(&archive).map_err(failed)?;
        return Ok(missing);
    }
    // A report that is interrupted leaves no file, and one that others may read is not made.
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let file = NamedTempFile::new_in(folder).map_err(failed)?;
    let (file, missing) = report(clients, args, now, file, &path).await?;
    file.persist_noclobber(&path).map_err(|error| failed(error.error))?;
    // A reader that has closed the pipe has what it wants.
    let _ = writeln!(out, "{}", path.display());
    Ok(missing)
}

async fn report<W: Write>(
    clients: [Client; 2],
    args: &Args,
    now: Timestamp,
    out: W,
    path: &Path,
) -> Result<(W, Vec<String>), Failure> {
    let time = u64::try_from(now.as_second()).unwrap_or_default();
    let archive = Archive::new(out, Redaction::new()?, time);
    let server = match clients[0].apiserver_version().await {
        Ok(version) => Some(version.git_version),
        // A user who may not read the version may read other things.
        Err(kube::Error::Api(_)) => None,
        Err(error) => return Err(Failure::Unreachable(error)),
    };
    let failed = |source| Failure::Write { path: path.to_owned(), source };
    let collector = Collector::new(clients, &args.netclaim_namespace, args.since, now, archive);
    let archive = collector.collect(server.as_deref()).await.map_err(failed)?;
    let missing = archive.missing().to_vec();
    if archive.is_empty() {
        return Err(Failure::Nothing(missing.into_iter().next().unwrap_or_default()));
    }
    Ok((archive.finish().map_err(failed)?, missing))
}

fn default_name(now: Timestamp) -> PathBuf {
    PathBuf::from(format!("netclaim-bugreport-{}.tar.gz", now.strftime("%Y%m%dT%H%M%SZ")))
}
