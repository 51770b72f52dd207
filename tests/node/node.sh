#!/bin/bash
# node.sh DIR COMMAND...: runs a command in the node's mounts and network, in /. Examples: `node.sh DIR ip addr`,
# `node.sh DIR ctr containers ls`.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# -ge 2 ]] || die "usage: node.sh DIR COMMAND..."
cluster_of "$1"
shift
in_node "$@"
