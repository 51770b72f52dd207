#!/bin/bash
# nodes.sh: runs scenarios on a cluster of three nodes in a virtual machine, whose kernel has what this machine's may lack: VLANs
# that nodes make. Run tests/node/build.sh first. The cluster is up after 4 minutes on an emulated processor.
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step "building the image for the nodes in the virtual machine" "$cache/log/qemu-image.log" \
  env NETCLAIM_PROFILE=quick NETCLAIM_FEATURES=netclaim-kubelet-plugin/failpoints \
  "$root/deploy/image/build.sh" "$work/netclaim.tar" localhost/netclaim:dev
cd "$root"
program=$(test_program netclaim-tests nodes)
cat >"$work/job" <<END
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /dev/shm /dev/pts
mount -t devpts devpts /dev/pts
# The upper layer of a runtime's overlays cannot be an overlay itself.
mount -t tmpfs -o size=7g netclaim /var/tmp
modprobe --all 8021q macvlan veth bridge overlay br_netfilter nf_conntrack
cd "$root/tests"
NETCLAIM_IMAGE=$work/netclaim.tar exec "$program" that_nodes_make
END
status=0
NETCLAIM_QEMU_MEMORY=10240 "$root/tests/qemu/vm.sh" bash "$work/job" | tee "$work/output" || status=$?
((status != 77)) || no_machine "the nodes in a virtual machine"
if grep -E 'SKIPPED: the kernel has no' "$work/output"; then
  die "the guest's kernel lacks a part that these scenarios are for"
fi
exit "$status"
