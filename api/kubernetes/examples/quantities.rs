//! Sorts amounts by their value, and prints each with its canonical form:
//!
//! ```text
//! cargo run --package netclaim-kubernetes --example quantities -- 1Gi 1.5G 900M
//! ```

use std::env;
use std::process::ExitCode;

use netclaim_kubernetes::quantity::{ONE, billionths, canonical};

fn main() -> ExitCode {
    let mut amounts = Vec::new();
    for text in env::args().skip(1) {
        match billionths(&text) {
            Ok(amount) => amounts.push((amount, text)),
            Err(error) => {
                eprintln!("{text:?} is not a quantity: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    amounts.sort();
    for (amount, text) in amounts {
        match u64::try_from(amount / ONE) {
            Ok(whole) if amount % ONE == 0 => println!("{text}\t{}", canonical(whole)),
            _ => println!("{text}\t{amount}n"),
        }
    }
    ExitCode::SUCCESS
}
