#!/bin/bash
# fuzz.sh [TARGET...]: each target, or those named, under libFuzzer for FUZZ_SECONDS (60), one after another.
# What it finds stays below FUZZ_DIR (~/.cache/netclaim/fuzz): TARGET/corpus has the inputs that reach new code, and
# TARGET/crash-… is an input that made the target fail. Needs a C++ compiler; the first time it builds for minutes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${FUZZ_SECONDS:-60}
dir=${FUZZ_DIR:-${NETCLAIM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/netclaim}/fuzz}

if ! command -v "${CXX:-c++}" >/dev/null; then
  echo "fuzz: no C++ compiler, which libFuzzer is built with: apt-get install g++, or set CXX" >&2
  exit 1
fi

# The coverage that libFuzzer goes by is an LLVM pass of every rustc; cargo fuzz would ask for a nightly one only to add
# sanitizers, which find nothing in code without `unsafe`. With --target build scripts and macros are left out of it.
flags=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
  -Cdebug-assertions -Coverflow-checks
)
host=$(rustc -vV | sed -n 's/^host: //p')
RUSTFLAGS="${flags[*]}" \
  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=none CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
  CARGO_PROFILE_RELEASE_DEBUG=line-tables-only \
  cargo build --release --locked --package netclaim-fuzz --features libfuzzer --target "$host" \
  --manifest-path "$here/Cargo.toml" --target-dir "$dir/target"

# shellcheck disable=SC2046 # a list of words
(($#)) || set -- $(ls "$here/corpus")
status=0
for target; do
  echo "==> $target, $seconds s"
  mkdir -p "$dir/$target/corpus"
  # The first directory gets what is found, the others are read only.
  FUZZ_TARGET=$target "$dir/target/$host/release/netclaim-fuzz" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=8192 -use_value_profile=1 -print_final_stats=1 \
    -dict="$here/words.dict" -artifact_prefix="$dir/$target/" "$dir/$target/corpus" "$here/corpus/$target" \
    2>"$dir/$target/log" && failed=0 || failed=$?
  grep -E 'Loaded|INITED|DONE|stat::|panicked|SUMMARY|Test unit' -A1 "$dir/$target/log" | grep -v '^--$' || true
  if ((failed)); then
    echo "fuzz: $target failed, see $dir/$target/log; an input to try again is named there" >&2
    status=1
  fi
done
exit $status
