#!/bin/bash
# power.sh DIR [--node NODE] off|on: powers a node (node0) off or on.
#   off  Kills every process of the node and its pods at once. Network namespaces, links, mounts, cgroups and memory (/run,
#        /etc, /opt) are lost. The disks (/var/lib/*, /var/log, /etc/cni/net.d, /opt/cni/bin), the control plane and other
#        nodes stay. The node stays off until it is powered on.
#   on   Starts the node, then the runtime and the kubelet.
# The kernel's boot id stays the same: it has no namespace.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=machine.sh
. "$here/machine.sh"
usage="usage: power.sh DIR [--node NODE] off|on"
one_action_on_node "$usage" "$@"

remove_pod_cgroups() {
  local c left=0
  for c in $(cgroup_dirs); do
    find "$c/$node" -mindepth 1 -depth -type d ! -path "$c/$node/services" -exec rmdir {} + 2>/dev/null || left=1
  done
  return $left
}

power_off() {
  wait_for 20 kill_processes "$node" || die "processes survive SIGKILL"
  # The kernel removes the namespace's links some time after its last process.
  wait_for 20 no_link || die "link $link stays: something holds the node's network namespace"
  link_host wire "$node" # keeps the API server's address on the host
  wait_for 20 remove_pod_cgroups || die "cgroups of pods cannot be removed"
}

power_on() {
  boot_node
  svc_start "runtime$ending"
  ready "runtime$ending" 30 "does not answer" runtime_answers
  svc_start "kubelet$ending"
}

case $action in
off) power_off ;;
on) power_on ;;
*) die "$usage" ;;
esac
