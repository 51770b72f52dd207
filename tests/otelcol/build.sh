#!/bin/bash
# build.sh: builds an OpenTelemetry Collector from the Go modules that go.mod beside this script pins, and prints its path. The
# result is kept in $NETCLAIM_CACHE; a second run takes no time. Exits with 3 where the Go proxy does not serve the modules: some
# serve no new ones, and have refused these before.
set -euo pipefail
otelcol=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../node/lib.sh
. "$otelcol/../node/lib.sh"
command -v go >/dev/null || die "no Go: see tests/node/build.sh"
export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off

build_otelcol() {
  (cd "$otelcol" && go build -o "$1/otelcol" -ldflags "-s -w" .)
}

out=$(artifact otelcol "$otelcol"/{go.mod,go.sum,main.go,build.sh} -- "$go_flags" "$machine")
[[ -e $out/otelcol ]] || (cd "$otelcol" && go list -deps . >/dev/null) || exit 3
make_once "$out" "building the OpenTelemetry Collector (first time: 1 to 3 minutes)" build_otelcol
echo "$out/otelcol"
