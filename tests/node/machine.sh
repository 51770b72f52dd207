# shellcheck shell=bash disable=SC2154 # variables of the scripts that this is sourced by
# Boots the node: its mounts and its links; sourced after cluster.sh, never run.

# namespaces SERVICE: waits until they exist: then the service runs `sleep`.
namespaces() {
  wait_for 5 grep -qx sleep "/proc/$(svc_pid "$1")/comm" || failed "$1" "no namespaces"
}

# boot_node: starts the service `node`, with the mounts and the links of a machine that has just booted.
boot_node() {
  svc_start node
  namespaces node
  mount_node
  link_node
}

# mount_node: mounts the node's file system. Large folders are in DIR/node; other changes are in memory, over the host's files.
mount_node() {
  mkdir -p "$dir"/node/{root,runtime,kubelet,cni/bin,cni/lib,cni/net.d,netclaim} "$dir/log/node"
  cp "$plugins_bin"/* "$dir/node/cni/bin/"
  # shellcheck disable=SC2016 # a script for another shell
  in_node bash -euc '
    dir=$1 node=$1/node/root runtime_root=$2
    # A new sysfs shows the links of this network namespace; cgroups must be mounted there again.
    mount -t tmpfs -o mode=755 netclaim "$node"
    mkdir "$node/cgroup"
    mount --rbind /sys/fs/cgroup "$node/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$node/cgroup" /sys/fs/cgroup
    umount -l "$node/cgroup"
    for d in /etc /opt /var/lib; do
      mkdir -p "$node/upper$d" "$node/work$d"
      mount -t overlay -o "lowerdir=$d,upperdir=$node/upper$d,workdir=$node/work$d" netclaim "$d"
    done
    bind() { mkdir -p "$2"; mount --bind "$1" "$2"; }
    bind "$dir/node/runtime" "$runtime_root"
    bind "$dir/node/kubelet" /var/lib/kubelet
    bind "$dir/node/cni/lib" /var/lib/cni
    bind "$dir/node/netclaim" /var/lib/netclaim
    bind "$dir/node/cni/bin" /opt/cni/bin
    bind "$dir/node/cni/net.d" /etc/cni/net.d
    bind "$dir/log/node" /var/log
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
    mount --make-rshared /' - "$dir" "$runtime_root"
}

# link_host SERVICE: creates the link from the host, which has the API server's address, to eth0 of the service.
link_host() {
  ip link del "$link" 2>/dev/null || true
  ip link add "$link" type veth peer name eth0 netns "$(svc_pid "$1")"
  ip link set "$link" up
  ip addr add "$api_ip/32" peer "$node_ip/32" dev "$link"
  ip route add "$pods_net" via "$node_ip" dev "$link"
}

link_node() {
  local wire_pid name
  wire_pid=$(svc_pid wire)
  link_host node
  in_node sysctl -qw net.ipv4.ip_forward=1
  in_node ip link set lo up
  in_node ip link set eth0 up
  in_node ip addr add "$node_ip/32" peer "$api_ip/32" dev eth0
  in_node ip route add default via "$api_ip" dev eth0
  for name in eth1 eth2; do
    # No link of a pod may have this index: busybox's ip would take it for the pod's link.
    in_node ip link add "$name" index "10${name#eth}" type veth peer name "$name" netns "$wire_pid"
    in_node ip link set "$name" up
    nsenter --target "$wire_pid" --net ip link set "$name" up
  done
}
