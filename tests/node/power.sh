#!/bin/bash
# power.sh DIR off|on: powers the node off or on.
#   off  Kills every process of the node and its pods at once. Network namespaces, links, mounts, cgroups and memory (/run,
#        /etc, /opt) are lost. The disks (/var/lib/*, /var/log, /etc/cni/net.d, /opt/cni/bin) and the control plane stay.
#   on   Starts the node, then the runtime and the kubelet.
# The kernel's boot id stays the same: it has no namespace.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=machine.sh
. "$here/machine.sh"
[[ $# == 2 ]] || die "usage: power.sh DIR off|on"
cluster_of "$1"

remove_pod_cgroups() {
  local c left=0
  for c in $(cgroup_dirs); do
    find "$c" -mindepth 1 -depth -type d ! -path "$c/services" -exec rmdir {} + 2>/dev/null || left=1
  done
  return $left
}

power_off() {
  local name pid others=()
  for name in wire etcd apiserver kcm scheduler; do
    ! pid=$(svc_pid "$name") || others+=("$pid")
  done
  wait_for 20 kill_processes "${others[@]}" || die "processes survive SIGKILL"
  # The kernel removes the namespace's links some time after its last process.
  wait_for 20 no_link || die "link $link stays: something holds the node's network namespace"
  link_host wire # keeps the API server's address on the host
  wait_for 20 remove_pod_cgroups || die "cgroups of pods cannot be removed"
}

power_on() {
  boot_node
  svc_start runtime
  ready runtime 30 "does not answer" runtime_answers
  svc_start kubelet
}

case $2 in
off) power_off ;;
on) power_on ;;
*) die "usage: power.sh DIR off|on" ;;
esac
