//! The program `netclaimctl`, which is a plugin of kubectl under the name `kubectl-netclaim`, and completes that plugin's command line
//! under the name `kubectl_complete-netclaim`. Exits with 0 on success, 1 on failure, 2 on a wrong command line, and 130 if interrupted.

use std::process::ExitCode;
use std::time::Duration;
use std::{env, io};

use netclaim_cli::colour::Colours;
use netclaim_cli::completion;
use tokio::signal::unix::{SignalKind, signal};

/// How long a killed plugin may take to exit.
const KILLED: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // CNI plugins must not inherit the caller's open files.
    if let Err(error) = netclaim_cni::close_inherited_descriptors() {
        eprintln!("netclaimctl: cannot close inherited descriptors: {error}");
        return ExitCode::FAILURE;
    }
    let mut words = env::args_os();
    if completion::is_asked(words.next().unwrap_or_default()) {
        print!("{}", completion::candidates(words));
        return ExitCode::SUCCESS;
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
        code = netclaim_cli::run(cli, &mut out, &mut err, Colours::of_stdout()) => code,
        () = interrupted => {
            // Plugins have their own process groups, so the terminal does not interrupt them; the drop of `run` kills them.
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
