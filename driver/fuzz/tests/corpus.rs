//! Every target over its corpus, and over mutations of it that are the same each time.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use netclaim_fuzz::TARGETS;

/// How often each file is mutated: all targets together take a few seconds.
const MUTATIONS: u64 = 50;

/// The corpus of a target, in the order of the names.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files.iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

#[test]
fn every_file_of_the_corpus_passes_its_target() {
    let mut failed = Vec::new();
    for (name, target) in TARGETS {
        failed.extend(corpus(name).into_iter().filter(|(_, bytes)| catch_unwind(|| target(bytes)).is_err()));
    }
    let failed: Vec<_> = failed.iter().map(|(path, _)| path).collect();
    assert!(failed.is_empty(), "targets failed, as said above, with: {failed:#?}");
}

#[test]
fn mutations_of_the_corpus_pass_its_target() {
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        let mut random = Random(1);
        for (path, bytes) in &corpus {
            for _ in 0..MUTATIONS {
                let (_, other) = &corpus[random.below(corpus.len())];
                let mutated = mutated(bytes, other, &mut random);
                if catch_unwind(|| target(&mutated)).is_err() {
                    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{name}"));
                    fs::write(&kept, &mutated).unwrap();
                    panic!("target `{name}` failed with a mutation of {path}, kept as {}", kept.display());
                }
            }
        }
    }
}

#[test]
fn every_directory_of_the_corpus_has_a_target() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut found: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, TARGETS.map(|(name, _)| name));
}

/// SplitMix64: the same numbers everywhere and always.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// `bytes` with one to four changes; `other` is where foreign pieces come from.
fn mutated(bytes: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    const TOKENS: [&[u8]; 12] =
        [b"null", b"{}", b"[]", b"\"\"", b"0", b"-1", b"1e999", b",", b"}", b"\xff", b"\0", b"\\u0000"];

    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let start = random.below(bytes.len() + 1);
        let end = start + random.below((bytes.len() - start).min(16) + 1);
        match random.below(4) {
            0 => drop(bytes.drain(start..end)),
            1 => drop(bytes.splice(start..end, TOKENS[random.below(TOKENS.len())].iter().copied())),
            2 => {
                let from = random.below(other.len() + 1);
                let to = from + random.below((other.len() - from).min(64) + 1);
                drop(bytes.splice(start..end, other[from..to].iter().copied()));
            }
            _ => {
                if let Some(byte) = bytes.get_mut(start) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes
}
