#!/bin/bash
# bench.sh: measures netclaim's CNI runtime, libcni and bare plugins side by side (root; 5 to 10 minutes after the builds).
# Each gets BENCH_ROUNDS turns. Namespaces and files are in memory and end with the program.
set -euo pipefail
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../node/lib.sh
. "$bench/../node/lib.sh"
((EUID == 0)) || die "needs root: plugins run in network namespaces of their own"

"$bench/../node/build.sh"
out=${CARGO_TARGET_DIR:-$root/target}/bench
mkdir -p "$out"
(cd "$bench/libcni" && CGO_ENABLED=0 GOWORK=off GOFLAGS=$go_flags go build -ldflags "-s -w" -o "$out/libcni" .)
step "building netclaim-bench" "$cache/log/bench.log" cargo build --release --locked --package netclaim-bench \
  --manifest-path "$root/Cargo.toml"

revision=$(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)
[[ -z $(git -C "$root" status --porcelain 2>/dev/null) ]] || revision+=" and changes"
echo "==> measuring ${BENCH_ROUNDS:=16} rounds" >&2
"$out/../release/netclaim-bench" compare --plugins "$plugins_bin" --busybox "$(command -v busybox)" \
  --libcni "$out/libcni" --out "$out/$(date -u +%Y%m%dT%H%M%SZ)" --rounds "$BENCH_ROUNDS" \
  --fact "plugins=$plugins_version" \
  --fact "libcni=$(awk '/containernetworking\/cni / { print $NF }' "$bench/libcni/go.mod")" \
  --fact "go=$(go env GOVERSION)" --fact "rustc=$(rustc --version | cut -d' ' -f2)" --fact "revision=$revision"
