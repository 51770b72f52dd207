//! The program `netclaimctl`, which is a plugin of kubectl under the name `kubectl-netclaim`, and completes
//! that plugin's command line under the name `kubectl_complete-netclaim`. Exits with 0 on success, 1 on
//! failure, 2 on a wrong command line, and 130 if interrupted.

use std::process::ExitCode;
use std::{env, io};

use netclaim_cli::colour::Colours;
use netclaim_cli::completion;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program that was interrupted.
const INTERRUPTED: u8 = 130;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words = env::args_os();
    if completion::is_asked(words.next().unwrap_or_default()) {
        print!("{}", completion::candidates(words));
        return ExitCode::SUCCESS;
    }
    let cli = netclaim_cli::Cli::from_command_line();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    if cli.command.is_ended_by_signals() {
        return netclaim_cli::run(cli, &mut out, &mut err, Colours::of_stdout()).await;
    }
    let interrupted = match interrupted() {
        Ok(interrupted) => interrupted,
        Err(error) => {
            eprintln!("netclaimctl: cannot listen for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    tokio::select! {
        code = netclaim_cli::run(cli, &mut out, &mut err, Colours::of_stdout()) => code,
        () = interrupted => {
            eprintln!("netclaimctl: interrupted");
            INTERRUPTED.into()
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
