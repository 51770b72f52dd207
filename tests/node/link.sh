#!/bin/bash
# link.sh DIR [--node NODE] down|up: takes the link between a node (node0) and the host down, as if the cable of eth0 were pulled,
# or up again. Without it the node reaches neither the API server nor pods of other nodes by eth0. Its programs and its uplinks go on.
# The host has the API server's address on these links: with that of the only node, it is gone for everybody.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=machine.sh
. "$here/machine.sh"
usage="usage: link.sh DIR [--node NODE] down|up"
one_action_on_node "$usage" "$@"
case $action in
down) ip link set "$link" down ;;
up)
  ip link set "$link" up
  route_pods
  ;;
*) die "$usage" ;;
esac
