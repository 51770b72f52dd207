#!/bin/bash
# packages.sh build|lint|test: installs missing Debian packages.
#   build  for cargo, which needs a C compiler
#   lint   for `make lint`, which does without where this is not root on Debian
#   test   for tests in network namespaces
# tests/node/build.sh installs those of a node.
set -euo pipefail
# shellcheck source=node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/lib.sh"
case ${1:-} in
build) packages cc:build-essential ;;
lint) ((EUID != 0)) || ! command -v apt-get >/dev/null || packages shellcheck:shellcheck ;;
test) packages ip:iproute2 iptables:iptables nft:nftables sysctl:procps unshare:util-linux mount:mount ;;
*) die "usage: packages.sh build|lint|test" ;;
esac
