//! Keeps little memory. A burst of work (a hundred pods at once) frees its memory between allocations that
//! stay, and glibc keeps it for the next burst: three times what an idle agent needs.

use std::time::Duration;

/// From one trim to the next. A trim takes a millisecond or less.
const TRIM_INTERVAL: Duration = Duration::from_secs(30);

/// Has all threads allocate from one heap. Without it glibc gives up to eight for each processor to threads
/// that write files or wait for plugins, and each heap keeps a part of every burst. Call it before there are
/// threads.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "glibc has this call, and no crate wraps it")]
pub(crate) fn share_one_heap() {
    // SAFETY: `mallopt` takes two numbers and no pointer, and no other thread runs yet.
    let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    if taken == 0 {
        tracing::debug!("the C library keeps its number of heaps");
    }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn share_one_heap() {}

/// Returns free memory again and again.
pub(crate) async fn trim_regularly() {
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        // A trim blocks every thread that allocates, so another thread would not help.
        trim();
    }
}

#[cfg(target_env = "gnu")]
#[allow(unsafe_code, reason = "glibc has this call, and no crate wraps it")]
fn trim() {
    // SAFETY: `malloc_trim` may be called by any thread at any time; its argument is how many bytes to keep
    // at the end of the heap. It returns only pages in which nothing is allocated, and nothing may point into
    // those.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn trim() {}

#[cfg(test)]
#[cfg(target_env = "gnu")]
mod tests {
    use std::hint::black_box;

    /// Anonymous memory of this process, in KiB.
    fn anonymous() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
        let line =
            status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("how much is anonymous");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    #[test]
    fn a_trim_returns_memory_between_allocations_that_stay() {
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
