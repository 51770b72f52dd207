# shellcheck shell=bash disable=SC2034,SC2154 # shared with the scripts that source this
# The parts of a running cluster; sourced, never run. It sources lib.sh and runtime.sh.
#
# A cluster is a folder (DIR) and a slot, a number that no other cluster of this machine
# has. The slot names everything outside of DIR:
#   10.96.SLOT.0/24     service network; .1, its first address, is the API server's and
#                       the host's end of the links to the nodes
#   10.97.N.0/24        one for each node, N from SLOT * 8: the first address is the node,
#                       the sixteenth and up are pods
#   fd96:SLOT::/112     the same two networks of a cluster with IPv6
#   fd97:SLOT::/64
#   127.96.SLOT.1       etcd
#   netclaimSLOT        the host's end of the link to node0; netclaimSLOT-1 to node1 …
#   netclaim-SLOT       the cgroup that every process of the cluster lives in; each node
#                       has a cgroup of its own in it
# The link to DIR in $slots reserves the slot until it is removed or the machine reboots.
#
# $NETCLAIM_STACK chooses the address families of a new cluster; DIR/stack has those of an existing one.
#   ipv4                the default
#   dual                both, IPv4 first: the API server has the IPv4 address
#   ipv6                IPv6 alone
#
# $NETCLAIM_BOOTSTRAP=kubeadm has kubeadm make the control plane of a new cluster (see kubeadm.sh); DIR/bootstrap has that of an
# existing one.
#   10.98.SLOT.0/24     its service network
#
# The names of node0's services and files have no number: kubelet, DIR/log/kubelet.log,
# DIR/node. node1 has kubelet1, DIR/log/kubelet1.log, DIR/node1.

# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=runtime.sh
. "$here/runtime.sh"

# shellcheck source=kubeadm.sh
. "$here/kubeadm.sh"

slots=/run/netclaim-clusters
most_slots=31 most_nodes=8 # 10.97.0.0/16 has a network for each node

# cluster_dir DIR: sets dir, the names of its slot when it has one, and node0's.
cluster_dir() {
  dir=$(realpath -m "$1")
  slot=$(cat "$dir/slot" 2>/dev/null) || slot=
  nodes=$(cat "$dir/nodes" 2>/dev/null) || nodes=1
  stack=$(cat "$dir/stack" 2>/dev/null) || stack=ipv4
  bootstrap=$(cat "$dir/bootstrap" 2>/dev/null) || bootstrap=services
  host_ips=$(of_stack "10.96.$slot.1" "fd96:$slot::1") api_ip=${host_ips%,*} etcd_ip=127.96.$slot.1
  services_nets=$(of_stack "10.96.$slot.0/24" "fd96:$slot::/112") dns_ips=$(of_stack "10.96.$slot.10" "fd96:$slot::a")
  api_url=https://$api_ip cgroup=netclaim-$slot
  [[ $api_ip != *:* ]] || api_url=https://[$api_ip]
  select_node 0
  ! by_kubeadm || kubeadm_addresses
}

# of_stack IPV4 IPV6: prints the one of the cluster's family, or both, separated by a comma.
of_stack() {
  case $stack in
  ipv4) echo "$1" ;;
  dual) echo "$1,$2" ;;
  ipv6) echo "$2" ;;
  esac
}

# select_node NUMBER: sets the names of a node: its own, the ending of its services' and files' names, its addresses and
# its link.
select_node() {
  local net=10.97.$((slot * most_nodes + $1))
  node=node$1 ending=$1 link=netclaim$slot-$1
  (($1 > 0)) || ending='' link=netclaim$slot
  # A cluster with IPv6 has one node.
  node_ips=$(of_stack "$net.1" "fd97:$slot::1")
  pods_nets=$(of_stack "$net.0/24" "fd97:$slot::/64")
  first_pod_ips=$(of_stack "$net.16" "fd97:$slot::10")
}

# each_node COMMAND...: runs the command for one node after the other.
each_node() {
  local n
  for ((n = 0; n < nodes; n++)); do
    select_node "$n"
    "$@"
  done
  select_node 0
}

# node_names: prints the names of all nodes, each after a space.
node_names() { printf ' node%d' $(seq 0 $((nodes - 1))); }

# node_option OPTION NODE: selects the node that `--node NODE` names.
node_option() {
  local number=${2#node}
  [[ $1 == --node && "$(node_names) " == *" node$number "* ]] || die "no node $2:$(node_names)"
  select_node "$number"
}

# one_action_on_node USAGE DIR [--node NODE] ACTION: prepares for a cluster that must be up, selects the node (node0) and sets action.
one_action_on_node() {
  local usage=$1
  shift
  [[ $# == 2 || $# == 4 ]] || die "$usage"
  cluster_of "$1"
  (($# == 2)) || node_option "$2" "$3"
  action=${!#}
}

# all_services: prints the names of all services.
all_services() {
  echo wire
  by_kubeadm || printf '%s\n' etcd apiserver kcm scheduler
  each_node services_of_node
}
services_of_node() { printf '%s\n' "node$ending" "runtime$ending" "kubelet$ending"; }

# Whether this cluster holds its slot: DIR may be older than the last reboot.
holds_slot() { [[ -n $slot && $(readlink "$slots/$slot") == "$dir" ]]; }

# cluster_of DIR: prepares for a cluster that must be up.
cluster_of() {
  cluster_dir "$1"
  holds_slot || die "no cluster in $dir: start one with $here/up.sh $dir"
  use_runtime "$(<"$dir/runtime")"
  use_kubernetes "$(<"$dir/kubernetes")"
  PATH=$kubernetes_bin:$runtime_bin:$PATH
  export PATH KUBECONFIG=$dir/kubeconfig NO_PROXY=$services_nets,$api_ip,.svc
  export CONTAINERD_NAMESPACE=k8s.io CONTAINER_RUNTIME_ENDPOINT=unix://$runtime_socket # of ctr and crictl
  unset XDG_RUNTIME_DIR # the login session's folder, which the node does not have
}

# The cluster's cgroup in every hierarchy: one in version 2, one per controller in version 1.
cgroup_dirs() {
  if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
    echo "/sys/fs/cgroup/$cgroup"
  else
    awk -v name="$cgroup" '$3 == "cgroup" || $3 == "cgroup2" { print $2 "/" name }' /proc/mounts
  fi
}

# The hierarchy that tracks the cluster's processes.
cgroup_tracker() {
  local all
  all=$(cgroup_dirs)
  grep -m1 '/pids/' <<<"$all" || head -n1 <<<"$all"
}

# processes [NODE]: prints every process of the cluster or of a node: services, pods, and orphans of both.
processes() {
  local c
  for c in $(cgroup_dirs); do
    [[ ! -d $c/${1:-} ]] || find "$c/${1:-}" -name cgroup.procs -exec cat {} +
  done 2>/dev/null | sort -un
}

# kill_processes [NODE]: kills all processes of the cluster or of a node; fails if it had one to kill.
kill_processes() {
  local pids c
  for c in $(cgroup_dirs); do
    c=$c/${1:-}
    # A frozen process cannot die.
    [[ ! -d $c ]] || find "$c" -name freezer.state -exec sh -c 'for f; do echo THAWED >"$f"; done' - {} + 2>/dev/null || true
  done
  pids=$(processes "$@")
  [[ -n $pids ]] || return 0
  # shellcheck disable=SC2086 # a list
  kill -KILL $pids 2>/dev/null
  return 1
}

no_link() { ! ip link show "$link" &>/dev/null; }

# started PID: its start time in clock ticks. Linux reuses pids, but not with the same start time.
started() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The second field is the name, in parentheses, and may hold anything.
  read -ra stat <<<"${stat##*) }"
  [[ ${stat[0]} != Z ]] && echo "${stat[19]}"
}

# svc_pid NAME: the pid of a running service.
svc_pid() {
  local pid start
  read -r pid start 2>/dev/null <"$dir/pid/$1" || return 1
  [[ $(started "$pid") == "$start" ]] && echo "$pid"
}

# svc_define NAME COMMAND...: what svc_start runs.
svc_define() {
  local name=$1
  shift
  { printf '#!/bin/bash\nexec' && printf ' %q' "$@" && echo; } >"$dir/cmd/$name"
  chmod +x "$dir/cmd/$name"
}

# enter_cgroups PATH: puts this shell into a cgroup below the cluster's, where its processes are found and their CPU time is
# counted.
enter_cgroups() {
  local c tracker
  tracker=$(cgroup_tracker)
  for c in $(cgroup_dirs); do
    [[ $c == "$tracker" || $c == *cpuacct* ]] || continue
    mkdir -p "$c/$1"
    echo "$BASHPID" >"$c/$1/cgroup.procs"
  done
}

# cpus_of SERVICE: the processors of a service of a pinned cluster: the first half of them for the control plane, and the
# others for the nodes.
cpus_of() {
  local all half
  all=$(nproc --all) half=$((all / 2))
  case $1 in
  wire | etcd | apiserver | kcm | scheduler) echo "0-$((half - 1))" ;;
  *) echo "$half-$((all - 1))" ;;
  esac
}

svc_start() {
  local name=$1 pid enter=() number=${1##*[a-z]} group cpus=()
  ! svc_pid "$name" >/dev/null || return 0
  group=node${number:-0}/services
  case $name in
  # Has the far ends of the nodes' uplinks, which the nodes must not see.
  wire) enter=(unshare --net) group=services ;;
  etcd | apiserver | kcm | scheduler) group=services ;;
  node*) enter=(unshare --mount --net --propagation private) ;;
  *) enter=(nsenter --target "$(svc_pid "node$number")" --mount --net --) ;;
  esac
  [[ ! -e $dir/pinned ]] || cpus=(taskset --cpu-list "$(cpus_of "$name")")
  (
    enter_cgroups "$group/$name"
    # The node does not inherit the user's environment: runc would use a folder of the login session, and the components
    # the user's HTTP proxy.
    exec env -i PATH="$PATH" HOME=/root setsid "${cpus[@]}" "${enter[@]}" "$dir/cmd/$name"
  ) >>"$dir/log/$name.log" 2>&1 </dev/null &
  pid=$!
  disown
  echo "$pid $(started "$pid")" >"$dir/pid/$name"
}

# svc_signal NAME SIGNAL
svc_signal() {
  local pid
  pid=$(svc_pid "$1") || return 1
  kill "-$2" "$pid"
}

svc_gone() { ! svc_pid "$1" >/dev/null; }

# svc_stop NAME: ends it with SIGTERM, or with SIGKILL after 10 s.
svc_stop() {
  svc_signal "$1" TERM || return 0
  svc_signal "$1" CONT || return 0 # a paused process does not handle SIGTERM
  wait_for 10 svc_gone "$1" || svc_kill "$1"
}

svc_kill() {
  svc_signal "$1" KILL || return 0
  wait_for 10 svc_gone "$1" || die "$1 survives SIGKILL"
}

# in_node COMMAND...: runs a command in the selected node's mounts and network.
in_node() {
  local pid
  pid=$(svc_pid "node$ending") || die "$node of $dir is off: $here/power.sh $dir --node $node on"
  nsenter --target "$pid" --mount --net -- "$@"
}

# failed NAME TEXT: reports an error with the end of that log, and exits.
failed() {
  local log=$dir/log/$1.log
  echo "$(basename "$0"): $1: $2; log: $log" >&2
  tail -n 15 "$log" 2>/dev/null | cut -c1-300 | sed 's/^/    | /' >&2
  exit 1
}

# ready SERVICE SECONDS TEXT COMMAND...: waits until the command succeeds; fails if the service ends or after SECONDS.
ready() {
  local name=$1 limit=$2 text=$3 end=$((SECONDS + $2))
  shift 3
  until "$@" &>/dev/null; do
    svc_pid "$name" >/dev/null || failed "$name" "ended"
    ((SECONDS < end)) || failed "$name" "$text after $limit s"
    sleep 0.1
  done
}
