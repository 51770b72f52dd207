#!/bin/bash
# svc.sh DIR VERB SERVICE: controls a service of a cluster. Verbs:
#   start, stop (SIGTERM, SIGKILL after 10 s), restart, kill (SIGKILL),
#   pause (SIGSTOP), resume (SIGCONT), pid (prints it; fails if the service is not running)
# Services: wire, etcd, apiserver, kcm, scheduler; node, runtime, kubelet of node0, node1, runtime1, kubelet1 of node1, and
# so on. "wire" and those named "node" only hold namespaces.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# == 3 ]] || die "usage: svc.sh DIR start|stop|restart|kill|pause|resume|pid SERVICE"
cluster_of "$1"
verb=$2 name=$3
services=$(all_services | tr '\n' ' ')
[[ " $services" == *" $name "* ]] || die "no service $name: $services"

# A kubelet that finds no runtime ends, and nothing starts it again.
start() {
  if [[ $name == kubelet* ]]; then
    local number=${name#kubelet}
    select_node "${number:-0}"
    wait_for 10 in_node test -S "$runtime_socket" || true # a scenario may have stopped it
  fi
  svc_start "$name"
}

case $verb in
start) start ;;
stop) svc_stop "$name" ;;
kill) svc_kill "$name" ;;
restart) svc_stop "$name" && start ;;
pause) svc_signal "$name" STOP || die "$name is not running" ;;
resume) svc_signal "$name" CONT || die "$name is not running" ;;
pid) svc_pid "$name" ;;
*) die "no verb $verb: start, stop, restart, kill, pause, resume, pid" ;;
esac
