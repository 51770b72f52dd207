//! The program `netclaimctl`, and under the name `kubectl-netclaim` a plugin of kubectl. Exits with 0 when what was
//! asked for is done, 1 when it failed, 2 on a wrong command line.

use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // CNI plugins must not inherit what our caller left open.
    if let Err(error) = netclaim_driver::cni::close_inherited_descriptors() {
        eprintln!("netclaimctl: cannot close inherited descriptors: {error}");
        return ExitCode::FAILURE;
    }
    let cli = netclaim_cli::Cli::from_command_line();
    netclaim_cli::run(cli, &mut std::io::stdout(), &mut std::io::stderr()).await
}
