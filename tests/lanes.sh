#!/bin/bash
# lanes.sh: all tests of `make test`, side by side, because most of them wait for most of their time: those without a cluster, and the
# scenarios on real clusters, two lanes on one node and one on three. Two cores are idle for half of the time with two clusters; with four,
# scenarios fail for want of time. So there are three at a time, of two parts each where they are short; what measures time waits for the
# others, so it is last. Where there are four cores or more, the lanes cluster and nodes have two parts, each with a cluster of its own:
# scenarios that run four at a time, and those that run one by one. The clusters share nothing but the machine (see node/cluster.sh).
# Scenarios that measure time run beside nothing, by the lock of target/quiet.lock (see harness/quiet.rs).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With all crates, and at once: alone, the crate would have other features, and its dependencies be compiled again.
run() { cargo test --workspace --locked "$@"; }
run --no-run
run --no-run --test=cluster --test=install --test=nodes --test=rights
rm -rf target/rights

# Ignored tests need root: they run in network namespaces of their own, against the reference plugins, libcni and the runtime's side of
# NRI in Go.
# shellcheck disable=SC2317 # by `beside`
without_cluster() {
  timeout --kill-after=10 40m flock --shared --close target/quiet.lock \
    cargo test --workspace --locked --no-fail-fast -- --include-ignored
}
# lane TEST [PART]
lane() { NETCLAIM_PART=${2:-} run --no-fail-fast --test="$1"; }
# in_turn TEST[:PART] ...
# shellcheck disable=SC2317 # by `beside`
in_turn() {
  local one status=0
  for one in "$@"; do
    lane "${one%%:*}" "$([[ $one != *:* ]] || echo "${one#*:}")" || status=$?
  done
  return "$status"
}

# Each in a process group of its own, which ends with this script.
jobs=()
beside() {
  set -m
  "$@" &
  jobs+=($!)
  set +m
}
trap 'for job in "${jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done; wait; exit 130' INT TERM HUP
# The parts cannot share a cluster that keeps running.
unset NETCLAIM_TEST_CLUSTER NETCLAIM_TEST_NODES_CLUSTER
beside without_cluster
if (( $(nproc) >= 4 )); then
  beside lane cluster alone
  beside lane nodes alone
  beside lane nodes beside
  beside in_turn cluster:beside install
else
  beside lane cluster not-faults
  beside lane nodes not-disasters
  beside in_turn nodes:disasters install cluster:faults
fi
status=0
for job in "${jobs[@]}"; do
  wait "$job" || status=$?
done
# What they asked the API server for, beside what is granted.
lane rights || status=$?
exit "$status"
