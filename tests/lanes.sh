#!/bin/bash
# lanes.sh: all tests of `make test`. The image and the clusters are made while those without a cluster run. Then come the scenarios on
# real clusters, those on one node, those on three and those that install netclaim, side by side: a lane waits for much of its time, most
# of all the last, whose scenarios run one by one. The clusters share nothing but the machine (see node/cluster.sh). Scenarios that
# measure time run beside nothing, by the lock of target/quiet.lock (see harness/quiet.rs).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With all crates, and at once: alone, the crate would have other features, and its dependencies be compiled again.
run() { cargo test --workspace --locked "$@"; }
run --no-run
run --no-run --test=cluster --test=install --test=nodes --test=rights
rm -rf target/rights

# The scenarios begin when these have ended, which hold the lock. Ignored tests need root: they run in network namespaces of their own,
# against the reference plugins, libcni and the runtime's side of NRI in Go; one builds the site with mdBook.
# shellcheck disable=SC2317 # by `beside`
without_cluster() {
  timeout --kill-after=10 40m flock --close target/quiet.lock cargo test --workspace --locked --no-fail-fast -- --include-ignored
}
lane() { run --no-fail-fast "${@/#/--test=}"; }

# Each in a process group of its own, which ends with this script.
jobs=()
beside() {
  set -m
  "$@" &
  jobs+=($!)
  set +m
}
trap 'for job in "${jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done; wait; exit 130' INT TERM HUP
beside without_cluster
beside lane cluster
beside lane install
beside lane nodes
status=0
for job in "${jobs[@]}"; do
  wait "$job" || status=$?
done
# What they asked the API server for, beside what is granted.
lane rights || status=$?
exit "$status"
