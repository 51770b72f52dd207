#!/bin/bash
# build.sh: builds the programs of other projects that netclaim is compared with, and prints the folder that has them:
# Multus (its daemon and its shim), whereabouts and DRANET, from the Go modules that the go.mod files beside this script pin. The result is
# kept in $NETCLAIM_CACHE; a second run takes no time.
set -euo pipefail
peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../node/lib.sh
. "$peers/../../node/lib.sh"
command -v go >/dev/null || die "no Go: see tests/node/build.sh"
packages setpriv:util-linux
export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off

build_peers() {
  local peer
  for peer in multus dranet; do
    (cd "$peers/$peer" && go build -o "$1/" -ldflags "-s -w" tool)
  done
  # Its package is called cmd.
  (cd "$peers/whereabouts" && go build -o "$1/whereabouts" -ldflags "-s -w" tool)
}

out=$(artifact peers "$peers"/{multus,dranet,whereabouts}/go.{mod,sum} "$peers/build.sh" -- "$go_flags" "$machine")
make_once "$out" "building Multus, whereabouts and DRANET (first time: about 4 minutes)" build_peers
echo "$out"
