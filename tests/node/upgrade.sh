#!/bin/bash
# upgrade.sh DIR VERSION SERVICE...: replaces services of a running cluster by those of another version of Kubernetes, one
# after the other, and waits until it is ready. VERSION is `newest` or a version of kubernetes/, older or newer; its programs are
# built if they are missing. Services: apiserver, kcm, scheduler, kubelet, kubelet1 and so on.
#
# Arguments, certificates and data stay, and so does etcd. Nothing else is restarted. DIR/kubernetes and the kubectl of
# DIR/env keep the version that the cluster was started with.
#
# `upgrade.sh DIR VERSION` upgrades all of a cluster that kubeadm has made, as kubeadm does it (see kubeadm.sh).
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# -ge 2 ]] || die "usage: upgrade.sh DIR VERSION SERVICE..."
cluster_of "$1"
kubectl=$(command -v kubectl)
use_kubernetes "$2"
shift 2
NETCLAIM_RUNTIME=$runtime NETCLAIM_KUBERNETES=$kubernetes NETCLAIM_BOOTSTRAP=$bootstrap "$here/build.sh"

# replace SERVICE: starts the other version's program with the same arguments.
replace() {
  local words
  eval "words=($(sed -n '2s/^exec //p' "$dir/cmd/$1"))" # svc_define has quoted them
  svc_stop "$1"
  svc_define "$1" "$kubernetes_bin/${words[0]##*/}" "${words[@]:1}"
  svc_start "$1"
}

api_server_is_new() { "$kubectl" get --raw /readyz && "$kubectl" get --raw /version | grep -qF "\"v$kubernetes_version\""; }

# The condition Ready may still be the old kubelet's: the new one writes its version with its own.
node_is_new() {
  local is
  is=$("$kubectl" get node "$node" -o "jsonpath={.status.nodeInfo.kubeletVersion} {.status.conditions[?(@.type=='Ready')].status}") &&
    [[ $is == "v$kubernetes_version True" ]]
}

if by_kubeadm; then
  (($# == 0)) || die "kubeadm upgrades the whole cluster"
  kubeadm_upgrade
  exit
fi
(($# > 0)) || die "usage: upgrade.sh DIR VERSION SERVICE..."
services=$(all_services | tr '\n' ' ')
for service; do
  [[ " $services" == *" $service "* ]] || die "no service $service: $services"
  case $service in
  apiserver)
    replace apiserver
    ready apiserver 60 "not ready" api_server_is_new
    ;;
  kcm | scheduler) replace "$service" ;; # they serve no probe here
  kubelet*)
    number=${service#kubelet}
    select_node "${number:-0}"
    replace "$service"
    ready "$service" 60 "$node is not Ready" node_is_new
    select_node 0
    ;;
  *) die "$service is not a service of Kubernetes" ;;
  esac
done
