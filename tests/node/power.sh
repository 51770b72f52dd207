#!/bin/bash
# power.sh DIR off|on: takes the power from the node, or gives it back.
#   off  Every process of the node and its pods dies at once, and with them go its network namespaces, links, mounts,
#        cgroups and what is in memory (/run, /etc, /opt). The disks (/var/lib/*, /var/log, /etc/cni/net.d, /opt/cni/bin)
#        stay, and so does the control plane, which stands for another machine.
#   on   An empty machine starts, and on it the runtime and the kubelet.
# What no namespace has of its own is the kernel's boot id: it is the same afterwards.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=runtime.sh
. "$here/runtime.sh"
# shellcheck source=cluster.sh
. "$here/cluster.sh"
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
  wait_for 20 kill_processes "${others[@]}" || die "processes that do not die"
  # Some time after its last process the kernel takes a network namespace's links away.
  wait_for 20 no_link || die "link $link stays: something holds the node's network namespace"
  link_host wire # the API server keeps its address meanwhile
  wait_for 20 remove_pod_cgroups || die "cgroups of pods that cannot be removed"
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
