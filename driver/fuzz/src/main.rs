//! One target under libFuzzer: `FUZZ_TARGET` names it, the arguments are libFuzzer's.

#![no_main]

use std::sync::OnceLock;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
        match netclaim_fuzz::target(&name) {
            Some(target) => { let _ = TARGET.set(target); }
            None => {
                let known: Vec<&str> = netclaim_fuzz::TARGETS.iter().map(|(name, _)| *name).collect();
                eprintln!("FUZZ_TARGET is {name:?} and must be one of: {}", known.join(", "));
                std::process::exit(2);
            }
        }
    },
    |data: &[u8]| {
        if let Some(target) = TARGET.get() {
            target(data);
        }
    }
);
