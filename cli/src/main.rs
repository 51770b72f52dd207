//! The program `netclaimctl`, which is a plugin of kubectl under the name `kubectl-netclaim`, and completes
//! that plugin's command line under the name `kubectl_complete-netclaim`. Exits with 0 on success, 1 on
//! failure, 2 on a wrong command line, and 130 if interrupted.

use std::process::ExitCode;
use std::time::Duration;
use std::{env, io};

use netclaim_cli::colour::Colours;
use netclaim_cli::{Command, completion};
use tokio::signal::unix::{SignalKind, signal};

/// How long a killed plugin may take to exit.
const KILLED: Duration = Duration::from_millis(200);

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
    let is_cni = matches!(cli.command, Command::Cni(_));
    // CNI plugins must not inherit the caller's open files. Other commands may read them: `-f <(helm template
    // …)`.
    if is_cni && let Err(error) = netclaim_cni::close_inherited_descriptors() {
        eprintln!("netclaimctl: cannot close inherited descriptors: {error}");
        return ExitCode::FAILURE;
    }
    let (mut out, mut err) = (io::stdout(), io::stderr());
    // A read of standard input cannot be cancelled here, but the signal itself ends the program.
    if cli.command.reads_only_files() {
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
            if is_cni {
                // Plugins have their own process groups, so the terminal does not interrupt them; the drop of
                // `run` kills them.
                eprintln!("netclaimctl: interrupted; what was begun is not finished: `cni attachments` shows what to `cni del`");
                tokio::time::sleep(KILLED).await;
            } else {
                eprintln!("netclaimctl: interrupted");
            }
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
