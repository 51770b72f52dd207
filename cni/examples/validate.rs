//! Prints everything that is wrong with network configurations, without running anything:
//!
//! ```text
//! cargo run --package netclaim-cni --no-default-features --example validate -- /etc/cni/net.d/*.conflist
//! ```

use std::process::ExitCode;
use std::{env, fs, io};

use netclaim_cni::validate::{Severity, validate};

fn main() -> io::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in env::args().skip(1) {
        for finding in validate(&fs::read(&file)?) {
            println!("{file}: {finding}");
            if finding.severity == Severity::Error {
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
