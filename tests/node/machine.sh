# shellcheck shell=bash disable=SC2154 # variables of the scripts that this is sourced by
# Boots the selected node: its mounts and its links; sourced after cluster.sh, never run.

# namespaces SERVICE: waits until they exist: then the service runs `sleep`.
namespaces() {
  wait_for 5 grep -qx sleep "/proc/$(svc_pid "$1")/comm" || failed "$1" "no namespaces"
}

# boot_node: starts the service `node`, with the mounts and the links of a machine that has just booted.
boot_node() {
  svc_start "node$ending"
  namespaces "node$ending"
  mount_node
  ! by_kubeadm || kubeadm_boot
  link_node
}

# mount_node: mounts the node's file system. Large folders are in DIR/node; other changes are in memory, over the host's files.
mount_node() {
  local disk=$dir/node$ending log=$dir/log/node$ending
  mkdir -p "$disk"/{root,runtime,kubelet,cni/bin,cni/lib,cni/net.d,netclaim} "$log"
  cp "$plugins_bin"/* "$disk/cni/bin/"
  # shellcheck disable=SC2016 # a script for another shell
  in_node bash -euc '
    disk=$1 node=$1/root log=$2 runtime_root=$3 cgroup=$4 own=$5 cpus=$6
    # A new sysfs shows the links of this network namespace; cgroups must be mounted there again.
    mount -t tmpfs -o mode=755 netclaim "$node"
    mkdir "$node/cgroup"
    mount --rbind /sys/fs/cgroup "$node/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$node/cgroup" /sys/fs/cgroup
    umount -l "$node/cgroup"
    # Of a pinned cluster, the kubelet gives its pods all processors that the kernel says are online.
    if [[ $cpus ]]; then
      echo "$cpus" >"$node/online"
      mount --bind "$node/online" /sys/devices/system/cpu/online
    fi
    # A kubelet examines every container that it sees, also those of other nodes.
    for d in /sys/fs/cgroup{,/*}/"$cgroup"/node*; do
      [[ ! -d $d || $d == */$own ]] || mount -t tmpfs -o ro netclaim "$d"
    done
    for d in /etc /opt /var/lib; do
      mkdir -p "$node/upper$d" "$node/work$d"
      mount -t overlay -o "lowerdir=$d,upperdir=$node/upper$d,workdir=$node/work$d" netclaim "$d"
    done
    bind() { mkdir -p "$2"; mount --bind "$1" "$2"; }
    bind "$disk/runtime" "$runtime_root"
    bind "$disk/kubelet" /var/lib/kubelet
    bind "$disk/cni/lib" /var/lib/cni
    bind "$disk/netclaim" /var/lib/netclaim
    bind "$disk/cni/bin" /opt/cni/bin
    bind "$disk/cni/net.d" /etc/cni/net.d
    bind "$log" /var/log
    mkdir -p /etc/cdi
    # The kubelet would set these for the whole machine: it sees files that have the values already.
    mkdir "$node/sysctl"
    while read -r name value; do
      [[ -e /proc/sys/$name ]] || continue
      echo "$value" >"$node/sysctl/${name//\//.}"
      mount --bind "$node/sysctl/${name//\//.}" "/proc/sys/$name"
    done <<<"vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000"
    [[ /var/run -ef /run ]] || mount --bind /run /var/run
    mount -t tmpfs -o mode=755 netclaim /run
    mkdir -p /run/netns /run/cdi /run/lock
    # A runtime sets limits for every controller that the kernel lists, and fails for one that is not mounted.
    if [[ ! -e /sys/fs/cgroup/cgroup.controllers ]]; then
      awk "\$2 != 0" /proc/cgroups >"$node/controllers"
      mount --bind "$node/controllers" /proc/cgroups
    fi
    # As systemd does it, so that later mounts appear in pods with HostToContainer.
    mount --make-rshared /' - "$disk" "$log" "$runtime_root" "$cgroup" "$node" \
    "$([[ ! -e $dir/pinned ]] || cpus_of kubelet)"
}

# give_address LINK OWN PEER [COMMAND...]: gives a link the address OWN, and the route to PEER. COMMAND runs `ip` elsewhere.
give_address() {
  case $2 in
  # No other machine can have the address: it is not probed for a second before its use.
  *:*) "${@:4}" ip addr add "$2/128" peer "$3/128" dev "$1" nodad ;;
  *) "${@:4}" ip addr add "$2/32" peer "$3/32" dev "$1" ;;
  esac
}

# each_family FUNCTION: calls it for each of the cluster's families, with host_ip, node_ip and pods_net of the family.
each_family() {
  local n host_ip node_ip pods_net of_host of_node of_pods
  IFS=, read -ra of_host <<<"$host_ips"
  IFS=, read -ra of_node <<<"$node_ips"
  IFS=, read -ra of_pods <<<"$pods_nets"
  for n in "${!of_host[@]}"; do
    host_ip=${of_host[n]} node_ip=${of_node[n]} pods_net=${of_pods[n]}
    "$@"
  done
}

# link_host SERVICE NAME: creates the link from the host, which has the API server's address, to NAME of the service.
link_host() {
  ip link del "$link" 2>/dev/null || true
  ip link add "$link" type veth peer name "$2" netns "$(svc_pid "$1")"
  ip link set "$link" up
  each_family address_host
  # The host is the router between the nodes' eth0, for packets from these links alone.
  sysctl -qw "net.ipv4.conf.$link.forwarding=1"
}
address_host() {
  give_address "$link" "$host_ip" "$node_ip"
  route_family
}

# route_pods: creates the host's routes to the selected node's pods, which go when their link goes down.
route_pods() { each_family route_family; }
route_family() { ip route replace "$pods_net" via "$node_ip" dev "$link"; }

# make_segments: creates the two networks that the uplinks of the nodes are plugged into: one bridge for all eth1, another
# for all eth2.
make_segments() {
  local name
  for name in eth1 eth2; do
    nsenter --target "$(svc_pid wire)" --net ip link add "$name" up type bridge
  done
}

# uplinks: prints the names of the selected node's uplinks. Only two nodes are on the second segment.
uplinks() {
  case $node in
  node0 | node1) echo eth1 eth2 ;;
  *) echo eth1 ;;
  esac
}

link_node() {
  local wire_pid name
  wire_pid=$(svc_pid wire)
  link_host "node$ending" eth0
  in_node sysctl -qw net.ipv4.ip_forward=1
  [[ $stack == ipv4 ]] || in_node sysctl -qw net.ipv6.conf.all.forwarding=1
  in_node ip link set lo up
  in_node ip link set eth0 up
  each_family address_node
  for name in $(uplinks); do
    # No link of a pod may have this index: busybox's ip would take it for the pod's link.
    in_node ip link add "$name" index "10${name#eth}" type veth peer name "$node-$name" netns "$wire_pid"
    in_node ip link set "$name" up
    nsenter --target "$wire_pid" --net ip link set "$node-$name" master "$name" up
  done
}
address_node() {
  give_address eth0 "$node_ip" "$host_ip" in_node
  in_node ip route add default via "$host_ip" dev eth0
}
