//! The program `netclaimctl`, and under the name `kubectl-netclaim` a plugin of kubectl. Exits with 0 when what was
//! asked for is done, 1 when it failed, 2 on a wrong command line, 130 when it was interrupted.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

/// How long a plugin that was killed may take to be gone.
const KILLED: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // CNI plugins must not inherit what our caller left open.
    if let Err(error) = netclaim_cni::close_inherited_descriptors() {
        eprintln!("netclaimctl: cannot close inherited descriptors: {error}");
        return ExitCode::FAILURE;
    }
    let cli = netclaim_cli::Cli::from_command_line();
    let interrupted = match interrupted() {
        Ok(interrupted) => interrupted,
        Err(error) => {
            eprintln!("netclaimctl: cannot listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (mut out, mut err) = (io::stdout(), io::stderr());
    tokio::select! {
        code = netclaim_cli::run(cli, &mut out, &mut err) => code,
        () = interrupted => {
            // Plugins are in process groups of their own: the terminal does not interrupt them, we have just done.
            eprintln!("netclaimctl: interrupted; what was begun is not finished: `cni attachments` shows what to `cni del`");
            tokio::time::sleep(KILLED).await;
            ExitCode::from(130)
        }
    }
}

fn interrupted() -> io::Result<impl Future<Output = ()>> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
