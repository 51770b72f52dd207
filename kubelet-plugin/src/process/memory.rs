//! Gives memory back to the kernel. A burst of work (a hundred pods at once, hundreds of links plugged in) frees what it took in
//! the midst of what stays, and glibc keeps that for the next burst: three times what an agent needs at rest.

use std::time::Duration;

/// From one time to the next. It takes a millisecond or less.
const PERIOD: Duration = Duration::from_secs(30);

/// Gives back what is free, again and again.
pub async fn give_back() {
    loop {
        tokio::time::sleep(PERIOD).await;
        // It holds up whoever allocates, not only this thread: nothing is won by doing it elsewhere.
        trim();
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "glibc has this call, and no crate wraps it")]
fn trim() {
    // SAFETY: `malloc_trim` takes a number of bytes to leave at the end of the heap and may be called by any thread at any
    // time; it returns pages to the kernel in which nothing is allocated, which nobody may look at, and they read as zeroes
    // when they are allocated again.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use std::hint::black_box;

    /// What this process has in memory that is no file's, in KiB.
    fn anonymous() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
        let line =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("how much is anonymous");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn what_is_free_between_what_is_not_goes_back() {
        let mut pieces: Vec<Box<[u8]>> = (0..80_000).map(|_| vec![1; 1000].into_boxed_slice()).collect();
        let mut number = 0;
        // Every hundredth stays: the heap does not shrink by itself.
        pieces.retain(|_| (number += 1, number % 100 == 0).1);
        black_box(&pieces);
        let before = anonymous();
        super::trim();
        let after = anonymous();
        assert!(after + 40 * 1024 < before, "{before} KiB before, {after} KiB after");
    }
}
