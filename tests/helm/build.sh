#!/bin/bash
# build.sh: builds Helm from the Go module that go.mod beside this script pins, and prints its path. The result is kept in
# $NETCLAIM_CACHE; a second run takes no time.
set -euo pipefail
helm=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../node/lib.sh
. "$helm/../node/lib.sh"
command -v go >/dev/null || die "no Go: see tests/node/build.sh"
export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off

build_helm() {
  (cd "$helm" && go build -o "$1/helm" -ldflags "-s -w" helm.sh/helm/v4/cmd/helm)
}

out=$(artifact helm "$helm"/go.{mod,sum} "$helm/build.sh" -- "$go_flags" "$machine")
make_once "$out" "building Helm (first time: about 2 minutes)" build_helm
echo "$out/helm"
