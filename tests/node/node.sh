#!/bin/bash
# node.sh DIR COMMAND...: runs a command with the mounts and the network of the node, such as
# `node.sh DIR ip addr` or `node.sh DIR ctr containers ls`. It starts in /.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=runtime.sh
. "$here/runtime.sh"
# shellcheck source=cluster.sh
. "$here/cluster.sh"
[[ $# -ge 2 ]] || die "usage: node.sh DIR COMMAND..."
cluster_of "$1"
shift
in_node "$@"
