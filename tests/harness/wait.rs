//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// How often is looked. A look is a program or two; more often would slow down what is waited for.
const BEAT: Duration = Duration::from_millis(300);

/// Whether there is time for waits of minutes, which show no more than short ones do but do it better (`$NETCLAIM_LONG`).
pub fn long() -> bool {
    std::env::var_os("NETCLAIM_LONG").is_some()
}

/// Calls `look` until it succeeds, for at most `seconds`.
///
/// # Errors
/// The last one of `look` when the time is over, with `what`.
pub fn eventually<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match look() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => {
                return Err(error).with_context(|| format!("not within {seconds} s: {what}"));
            }
            Err(_) => std::thread::sleep(BEAT),
        }
    }
}

/// Makes sure that `look` succeeds for `seconds`, not only the first time.
///
/// # Errors
/// The first one of `look`, with `what`.
pub fn holds<T>(seconds: u64, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        let value = look().with_context(|| format!("not for {seconds} s: {what}"))?;
        if Instant::now() > end {
            return Ok(value);
        }
        std::thread::sleep(BEAT);
    }
}
