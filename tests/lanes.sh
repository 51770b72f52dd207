#!/bin/bash
# lanes.sh: the scenarios of `make test` on real clusters, those on one node beside those on three. A lane waits for much of its
# time: together they take 24 minutes on two cores, one after the other 37. The clusters share nothing but the machine (see
# node/cluster.sh).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# With all crates, and at once: alone, the crate would have other features, and its dependencies be compiled again.
lane() { cargo test --workspace --locked --no-fail-fast "${@/#/--test=}"; }
cargo test --workspace --locked --no-run --test=cluster --test=install --test=nodes --test=rights
rm -rf target/rights

# Each in a process group of its own, which ends with this script.
set -m
lane cluster &
one=$!
lane install nodes &
three=$!
set +m
trap 'kill -INT -- -"$one" -"$three" 2>/dev/null; wait; exit 130' INT TERM HUP
status=0
wait "$one" || status=$?
wait "$three" || status=$?
# What they asked the API server for, beside what is granted.
lane rights || status=$?
exit "$status"
