#!/bin/bash
# node.sh DIR [--node NODE] COMMAND...: runs a command in the mounts and the network of a node (node0), in /. Examples:
# `node.sh DIR ip addr`, `node.sh DIR --node node1 ctr containers ls`.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# -ge 2 ]] || die "usage: node.sh DIR [--node NODE] COMMAND..."
cluster_of "$1"
shift
if [[ $1 == --node ]]; then
  node_option "$1" "${2:-}"
  shift 2
fi
in_node "$@"
