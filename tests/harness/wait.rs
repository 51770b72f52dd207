//! Waits for conditions.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Interval of checks. A check runs a program or two: more of them would slow down what is waited for.
const INTERVAL: Duration = Duration::from_millis(300);

/// Whether scenarios may wait for minutes (`$NETCLAIM_LONG`): the same checks, under longer faults.
pub fn long() -> bool {
    std::env::var_os("NETCLAIM_LONG").is_some()
}

/// Calls `look` until it succeeds, for at most `seconds`; then returns its last error with `what`.
pub fn eventually<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => {
                return Err(error).with_context(|| format!("not within {seconds} s: {what}"));
            }
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

/// Makes sure that `look` keeps succeeding for `seconds`; otherwise returns its error with `what`.
pub fn holds<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let value = look().with_context(|| format!("not for {seconds} s: {what}"))?;
        if Instant::now() > end {
            return Ok(value);
        }
        std::thread::sleep(INTERVAL);
    }
}
