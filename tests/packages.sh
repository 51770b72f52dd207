#!/bin/bash
# packages.sh build|test: installs missing Debian packages.
#   build  for cargo, which needs a C compiler
#   test   for tests in network namespaces
# tests/node/build.sh installs those of a node.
set -euo pipefail
# shellcheck source=node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/lib.sh"
case ${1:-} in
build) packages cc:build-essential ;;
test) packages ip:iproute2 iptables:iptables nft:nftables sysctl:procps unshare:util-linux mount:mount ;;
*) die "usage: packages.sh build|test" ;;
esac
