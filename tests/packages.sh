#!/bin/bash
# packages.sh build|test: installs the missing Debian packages with the programs that a lane starts.
#   build  what cargo needs: it links with a C compiler, and some crates have parts in C
#   test   what tests in network namespaces start
# tests/node/build.sh installs what a node needs.
set -euo pipefail
# shellcheck source=node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/lib.sh"
case ${1:-} in
build) packages cc:build-essential ;;
test) packages ip:iproute2 iptables:iptables nft:nftables sysctl:procps unshare:util-linux mount:mount ;;
*) die "usage: packages.sh build|test" ;;
esac
