#!/bin/bash
# up.sh DIR: starts a Kubernetes cluster in DIR, or the missing nodes and services of one that exists. The cluster is ready
# when the script ends; `. DIR/env` then sets KUBECONFIG and PATH. Clusters in several folders run side by side.
#
# A node is a mount and a network namespace (node.sh enters them), not a machine. These paths are private to it: /run,
# /etc, /opt, /var/lib/{containerd or containers,kubelet,cni,netclaim}, /var/log, and a /sys that shows only the node's
# links. The links are eth0, with the default route, and the uplinks eth1 and eth2. A bridge in the network namespace of the
# service "wire" joins all eth1, another joins all eth2. Only node0 and node1 have an eth2.
#
# NETCLAIM_NODES is the number of nodes of a new cluster (1..8, default 1); they are node0, node1 and so on. NETCLAIM_SLOT
# chooses the slot (1..31; see cluster.sh), by default a free one. NETCLAIM_STACK chooses the address families of a new
# cluster (see cluster.sh), NETCLAIM_RUNTIME its container runtime (see runtime.sh), NETCLAIM_KUBERNETES its version (see
# use_kubernetes in lib.sh), NETCLAIM_BOOTSTRAP who makes it (see kubeadm.sh). With NETCLAIM_PINNED=1 the control plane has the
# first half of the machine's processors and the nodes have the other half. With NETCLAIM_API_ONLY=1 only etcd and the API
# server start, for objects of nodes that do not exist; svc.sh starts others.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
# shellcheck source=machine.sh
. "$here/machine.sh"
[[ $# == 1 ]] || die "usage: up.sh DIR"
((EUID == 0)) || die "run me as root: a node needs namespaces, mounts and cgroups"

cluster_dir "$1"
case $dir/ in
/etc/* | /opt/* | /run/* | /var/run/* | /var/lib/* | /var/log/* | /sys/* | /proc/*) die "$dir: the node has a private ${dir%/*}, choose another folder" ;;
esac
# down.sh empties DIR, so DIR must be new, or what down.sh has left.
if [[ ! -e $dir/slot && -n $(ls -A "$dir" 2>/dev/null) && ! ($(ls -A "$dir") == log && -e $dir/log/node.log) ]]; then
  die "$dir holds other files: choose a new folder"
fi
if holds_slot; then
  svc_gone wire || running=yes
fi
if [[ -n ${running:-} ]]; then
  use_runtime "$(<"$dir/runtime")"
  [[ ${NETCLAIM_RUNTIME:-$runtime} == "$runtime" ]] || die "the cluster in $dir has $runtime: $here/down.sh $dir first"
  use_kubernetes "$(<"$dir/kubernetes")"
  [[ ${NETCLAIM_KUBERNETES:-$kubernetes} == "$kubernetes" ]] ||
    die "the cluster in $dir has Kubernetes $kubernetes: $here/down.sh $dir first"
  [[ ${NETCLAIM_NODES:-$nodes} == "$nodes" ]] || die "the cluster in $dir has $nodes nodes: $here/down.sh $dir first"
  [[ ${NETCLAIM_STACK:-$stack} == "$stack" ]] || die "the cluster in $dir has the addresses $stack: $here/down.sh $dir first"
  [[ ${NETCLAIM_BOOTSTRAP:-$bootstrap} == "$bootstrap" ]] || die "the cluster in $dir is made of $bootstrap: $here/down.sh $dir first"
else
  ((${NETCLAIM_NODES:=1} >= 1 && NETCLAIM_NODES <= most_nodes)) || die "NETCLAIM_NODES=$NETCLAIM_NODES: 1 to $most_nodes nodes"
  ((${NETCLAIM_SLOT:-1} >= 1 && ${NETCLAIM_SLOT:-1} <= most_slots)) || die "NETCLAIM_SLOT=$NETCLAIM_SLOT: 1 to $most_slots"
  case ${NETCLAIM_STACK:=ipv4} in
  ipv4) ;;
  # The host is the router between nodes, and older kernels forward IPv6 between all of its links or none.
  dual | ipv6) ((NETCLAIM_NODES == 1)) || die "NETCLAIM_STACK=$NETCLAIM_STACK: with IPv6 a cluster has one node" ;;
  *) die "NETCLAIM_STACK=$NETCLAIM_STACK: ipv4, dual or ipv6" ;;
  esac
  case ${NETCLAIM_BOOTSTRAP:=services} in
  services) ;;
  kubeadm)
    [[ $NETCLAIM_STACK == ipv4 && ${NETCLAIM_RUNTIME:-containerd} == containerd* && -z ${NETCLAIM_API_ONLY:-} ]] ||
      die "NETCLAIM_BOOTSTRAP=kubeadm: nodes with IPv4 and containerd"
    ;;
  *) die "NETCLAIM_BOOTSTRAP=$NETCLAIM_BOOTSTRAP: services or kubeadm" ;;
  esac
  use_runtime "${NETCLAIM_RUNTIME:-containerd}"
  use_kubernetes "${NETCLAIM_KUBERNETES:-newest}"
  [[ ! -e $dir/slot ]] || "$here/down.sh" "$dir"
fi
NETCLAIM_RUNTIME=$runtime NETCLAIM_KUBERNETES=$kubernetes NETCLAIM_BOOTSTRAP=${NETCLAIM_BOOTSTRAP:-$bootstrap} "$here/build.sh"

# free_slot N: no cluster has the slot, and no route of this machine leads to its networks.
free_slot() {
  local owner
  owner=$(readlink "$slots/$1") && [[ $(cat "$owner/slot" 2>/dev/null) == "$1" ]] && return 1
  [[ -z $(ip -4 route show root "10.96.$1.0/24") && -z $(ip -4 route show root "10.97.$(($1 * most_nodes)).0/21") &&
    -z $(ip -6 route show root "fd96:$1::/112") && -z $(ip -6 route show root "fd97:$1::/64") ]]
}

take_slot() {
  local n
  mkdir -p "$dir"
  exec {lock}</run # a lock that leaves no file behind
  flock "$lock"
  mkdir -p "$slots"
  for n in ${NETCLAIM_SLOT:-$(seq 1 "$most_slots")}; do
    if free_slot "$n"; then
      echo "$n" >"$dir/slot"
      echo "$NETCLAIM_NODES" >"$dir/nodes"
      echo "$NETCLAIM_STACK" >"$dir/stack"
      echo "$NETCLAIM_BOOTSTRAP" >"$dir/bootstrap"
      ln -sfn "$dir" "$slots/$n"
      break
    fi
  done
  exec {lock}<&-
  cluster_dir "$dir"
  holds_slot || die "${NETCLAIM_SLOT:+slot }${NETCLAIM_SLOT:-every slot} is taken: see $slots and \`ip route\`"
}

# make_cgroups: makes the cgroups of the cluster and of its nodes, and in each one a cgroup for its services.
make_cgroups() {
  local c f n
  # Version 2: only the machine's root may have processes and share its controllers. In a container, the root of this
  # hierarchy is not the machine's.
  if [[ -e /sys/fs/cgroup/cgroup.controllers ]] && ! share_controllers /sys/fs/cgroup && [[ -e /sys/fs/cgroup/cgroup.type ]]; then
    mkdir -p /sys/fs/cgroup/init
    for f in $(</sys/fs/cgroup/cgroup.procs); do
      echo "$f" >/sys/fs/cgroup/init/cgroup.procs || true # the process may have ended
    done 2>/dev/null
    share_controllers /sys/fs/cgroup || true # the kubelet reports a missing controller
  fi
  for c in $(cgroup_dirs); do
    make_cgroup "$c"
    for ((n = 0; n < nodes; n++)); do
      make_cgroup "$c/node$n"
      pin_node "$c/node$n"
    done
  done
}

# make_cgroup FOLDER: makes a cgroup that can have children, and its child `services`.
make_cgroup() {
  local c f
  mkdir -p "$1/services"
  if [[ -e $1/cgroup.controllers ]]; then
    share_controllers "$1" || true
    return
  fi
  # Version 1: a cpuset without CPUs and memory takes no process.
  for c in "$1" "$1/services"; do
    for f in cpuset.mems cpuset.cpus; do
      [[ ! -e $c/$f || -n $(<"$c/$f") ]] || cat "${c%/*}/$f" >"$c/$f"
    done
  done
}

# pin_node FOLDER: gives a node's cgroup the processors of the nodes: the runtime lets a container run on all of its cgroup's.
pin_node() {
  local f
  [[ -e $dir/pinned ]] || return 0
  # Version 1 lets no cgroup have less than its child.
  for f in "$1"/{services/,}cpuset.cpus; do
    [[ ! -e $f ]] || cpus_of kubelet >"$f"
  done
}

share_controllers() {
  local name failed=0
  for name in $(<"$1/cgroup.controllers"); do
    echo "+$name" >"$1/cgroup.subtree_control" || failed=1
  done 2>/dev/null
  return $failed
}

# certificate NAME SUBJECT USAGE [ALTERNATIVE_NAMES]: DIR/pki/NAME.{key,crt} by the cluster's CA.
certificate() {
  local file=$dir/pki/$1
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$file.key" -subj "$2" -out "$file.csr"
  openssl x509 -req -in "$file.csr" -CA "$dir/pki/ca.crt" -CAkey "$dir/pki/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -days 3650 -out "$file.crt" -extfile - <<X
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = $3
${4:+subjectAltName = $4}
X
  rm "$file.csr"
}

# identity FILE NAME USER [GROUP]: writes a kubeconfig that needs no other file. Each component has its own user, with only
# the rights of RBAC and the Node authorizer: with more, the tests would not find missing rights.
identity() {
  certificate "$2" "${4:+/O=$4}/CN=$3" clientAuth
  jq -n --arg server "$api_url" --rawfile ca "$dir/pki/ca.crt" --rawfile crt "$dir/pki/$2.crt" \
    --rawfile key "$dir/pki/$2.key" '{
      apiVersion: "v1", kind: "Config", "current-context": "netclaim",
      clusters: [{name: "netclaim", cluster: {server: $server, "certificate-authority-data": ($ca | @base64)}}],
      users: [{name: "netclaim", user: {"client-certificate-data": ($crt | @base64), "client-key-data": ($key | @base64)}}],
      contexts: [{name: "netclaim", context: {cluster: "netclaim", user: "netclaim"}}]}' >"$1"
}

identify_kubelet() { identity "$dir/pki/kubelet$ending.conf" "kubelet$ending" "system:node:$node" system:nodes; }

make_identities() (
  umask 077
  mkdir -p "$dir/pki"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=netclaim" -days 3650 \
    -addext "keyUsage = critical, keyCertSign, cRLSign" -keyout "$dir/pki/ca.key" -out "$dir/pki/ca.crt"
  openssl ecparam -name prime256v1 -genkey -noout -out "$dir/pki/serviceaccounts.key"
  certificate apiserver /CN=kube-apiserver serverAuth \
    "IP:$api_ip, DNS:kubernetes, DNS:kubernetes.default, DNS:kubernetes.default.svc"
  certificate apiserver-kubelet "/O=system:masters/CN=kube-apiserver" clientAuth
  identity "$dir/kubeconfig" admin admin system:masters
  each_node identify_kubelet
  identity "$dir/pki/kcm.conf" kcm system:kube-controller-manager
  identity "$dir/pki/scheduler.conf" scheduler system:kube-scheduler
)

write_configuration() {
  cat >"$dir/env" <<X
# The clients of the cluster in $dir: . $dir/env
export KUBECONFIG=$dir/kubeconfig NO_PROXY=$services_nets
export PATH=$kubernetes_bin:\$PATH
X
  cat >"$dir/audit.yaml" <<X
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
X
  # As by default. The API server reads changes of this file while it runs.
  cat >"$dir/authorization.yaml" <<X
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]
X
  runtime_configuration >"$dir/runtime.toml"
  each_node write_network_configuration
  if by_kubeadm; then kubeadm_configuration; else each_node write_kubelet_configuration; fi
}

write_network_configuration() {
  jq -n --arg nets "$pods_nets" --arg first "$first_pod_ips" --arg routes "$(of_stack 0.0.0.0/0 ::/0)" '{
      cniVersion: "1.0.0", name: "pods", plugins: [{type: "ptp", ipam: {type: "host-local",
        routes: [{dst: ($routes / ",")[]}],
        ranges: [[$nets / ",", $first / ","] | transpose[] | [{subnet: .[0], rangeStart: .[1]}]]}}]}' \
    >"$dir/node$ending/cni/net.d/10-pods.conflist"
}

write_kubelet_configuration() {
  cat >"$dir/kubelet$ending.yaml" <<X
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
$(kubelet_of_the_machine)
$(kubelet_of_the_node)
maxPods: 250
containerRuntimeEndpoint: unix://$runtime_socket
clusterDomain: cluster.local
clusterDNS: [$dns_ips] # no server: without an address every pod gets a warning
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/pki/ca.crt}}
authorization: {mode: Webhook}
X
}

# kubelet_of_the_machine: prints the configuration that is due to this machine. syncFrequency stays at its default, a minute, so
# that the tests wait as long as users do.
kubelet_of_the_machine() {
  cat <<X
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
volumePluginDir: /var/lib/kubelet/volumeplugins
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
X
}

# kubelet_of_the_node: a kubelet removes the cgroups of pods that it does not know: each has its own root.
kubelet_of_the_node() { echo "cgroupRoot: /$cgroup/$node"; }

define_services() {
  by_kubeadm || define_control_plane
  mapfile -t words < <(runtime_command)
  each_node define_node_services "${words[@]}"
}

define_control_plane() {
  local pki=$dir/pki bin=$kubernetes_bin
  svc_define etcd "$bin/etcd" --data-dir "$dir/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://$etcd_ip:2379" --advertise-client-urls "http://$etcd_ip:2379" \
    --listen-peer-urls "http://$etcd_ip:2380" --initial-advertise-peer-urls "http://$etcd_ip:2380" \
    --initial-cluster "default=http://$etcd_ip:2380"
  # The API server listens on the address of the service "kubernetes", so that pods reach it (KUBERNETES_SERVICE_HOST)
  # without a kube-proxy. For the same reason it asks webhooks at the addresses of their pods.
  svc_define apiserver "$bin/kube-apiserver" --etcd-servers "http://$etcd_ip:2379" --v=1 \
    --bind-address "$api_ip" --secure-port 443 --service-cluster-ip-range "$services_nets" \
    --cert-dir "$pki" --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" \
    --client-ca-file "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
    --kubelet-client-certificate "$pki/apiserver-kubelet.crt" --kubelet-client-key "$pki/apiserver-kubelet.key" \
    --service-account-key-file "$pki/serviceaccounts.key" --service-account-signing-key-file "$pki/serviceaccounts.key" \
    --service-account-issuer https://kubernetes.default.svc --allow-privileged \
    --authorization-config "$dir/authorization.yaml" --enable-admission-plugins NodeRestriction --enable-aggregator-routing \
    --audit-policy-file "$dir/audit.yaml" --audit-log-path "$dir/log/audit.log" --audit-log-maxsize 10000
  # At its start it requests a token for each controller: 5 s at the default of 20 requests per second.
  svc_define kcm "$bin/kube-controller-manager" --kubeconfig "$pki/kcm.conf" --leader-elect=false --secure-port 0 \
    --use-service-account-credentials --service-account-private-key-file "$pki/serviceaccounts.key" \
    --root-ca-file "$pki/ca.crt" --kube-api-qps 200 --kube-api-burst 400
  # With thousands of nodes, the default of 50 requests per second would limit the scheduler.
  svc_define scheduler "$bin/kube-scheduler" --kubeconfig "$pki/scheduler.conf" --leader-elect=false --secure-port 0 \
    ${NETCLAIM_API_ONLY:+--kube-api-qps 1000 --kube-api-burst 2000}
}

# define_node_services COMMAND...: the services of the selected node, with the command of its runtime.
define_node_services() {
  svc_define "node$ending" sleep infinity
  svc_define "runtime$ending" env "PATH=$runtime_bin:$PATH" "$@"
  if by_kubeadm; then
    kubeadm_kubelet
    return
  fi
  svc_define "kubelet$ending" "$kubernetes_bin/kubelet" --config "$dir/kubelet$ending.yaml" \
    --kubeconfig "$dir/pki/kubelet$ending.conf" --v=2 --hostname-override "$node" --node-ip "$node_ips"
}

port_open() { : <"/dev/tcp/$1/$2"; }

boot_if_off() { ! svc_gone "node$ending" || boot_node; }
start_on_node() { svc_start "$1$ending"; }
runtime_ready() { ready "runtime$ending" 30 "does not answer" runtime_answers; }
node_ready() {
  ready "kubelet$ending" 60 "$node is not Ready" kubectl wait --for=condition=Ready "node/$node" --timeout=1s
}

up=no
# Removes a cluster that does not come up, but for its logs.
clean_up() {
  [[ $up == yes ]] || "$here/down.sh" "$dir"
}

if [[ -z ${running:-} ]]; then
  trap clean_up EXIT
  take_slot
  rm -rf "$dir/log" # of the cluster before this one
  mkdir -p "$dir"/{cmd,pid,log}
  echo "$runtime" >"$dir/runtime"
  echo "$kubernetes" >"$dir/kubernetes"
  [[ -z ${NETCLAIM_PINNED:-} ]] || touch "$dir/pinned"
  echo "==> starting a cluster in $dir (slot $slot, nodes: $nodes)" >&2
  make_cgroups
  svc_define wire sleep infinity
  define_services
  svc_start wire
  namespaces wire
  make_segments
  each_node boot_node
  by_kubeadm || make_identities &>"$dir/log/identities.log" || failed identities "openssl cannot make the certificates"
  write_configuration
fi

start_control_plane() {
  local s
  for s in etcd apiserver; do svc_start "$s"; done
  ready etcd 30 "does not listen" port_open "$etcd_ip" 2379
  ready apiserver 60 "not ready" kubectl get --raw /readyz
  [[ -n ${NETCLAIM_API_ONLY:-} ]] || for s in kcm scheduler; do svc_start "$s"; done
}

cluster_of "$dir"
each_node boot_if_off
[[ -n ${NETCLAIM_API_ONLY:-} ]] || each_node start_on_node runtime
by_kubeadm || start_control_plane
if [[ -n ${NETCLAIM_API_ONLY:-} ]]; then
  up=yes
  exit
fi
each_node runtime_ready
"$here/image.sh" "$dir" "$images/pause.tar" "$images/busybox.tar"
each_node start_on_node kubelet
! by_kubeadm || [[ -e $dir/kubeconfig ]] || kubeadm_make
each_node node_ready
wait_for 60 kubectl get serviceaccount/default configmap/kube-root-ca.crt || failed kcm "no default service account"
up=yes
echo "cluster is up, with$(node_names): . $dir/env"
