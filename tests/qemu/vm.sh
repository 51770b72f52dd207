#!/bin/bash
# vm.sh COMMAND...: runs a command as root on Debian's kernel, in a virtual machine without a network. It sees this
# machine's files; its changes are in memory and lost at the end. Prints the command's output and returns its status, or 77
# if this machine cannot run virtual machines.
#
# It uses /dev/kvm if that works; an emulated processor takes several times as long. If QEMU has igb, the machine has two
# network cards with up to 7 virtual functions each, on one wire: eth0 below a PCIe root without a NUMA node, and eth1 below
# one of node 1. At the end the machine is switched off: it writes nothing more.
#   NETCLAIM_QEMU_ACCEL    kvm or tcg, instead of trying both
#   NETCLAIM_QEMU_DISK     a file that the machine has as a disk, /dev/vda (modprobe virtio_blk)
#   NETCLAIM_QEMU_MEMORY   its memory in MiB, in which all changes of files are, too (1536)
#   NETCLAIM_QEMU_TIMEOUT  seconds until the machine is killed (1800)
# shellcheck disable=SC2317 # functions that are called by name
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

cannot() {
  echo "$(basename "$0"): $*" >&2
  exit 77
}

[[ $machine == x86_64 ]] || cannot "no virtual machine on $machine: only x86_64 is supported"
[[ $EUID == 0 ]] || cannot "run me as root: the virtual machine reads the files of this machine"
(packages qemu-system-x86_64:qemu-system-x86 busybox:busybox-static modprobe:kmod cpio:cpio xz:xz-utils) ||
  cannot "QEMU and its tools cannot be installed"

kernel=$("$root/tests/qemu/kernel.sh") || {
  # The package lists are old or missing.
  step "asking Debian for its kernel" "$cache/log/packages.log" apt-get update -q || true
  kernel=$("$root/tests/qemu/kernel.sh") || cannot "Debian's kernel cannot be fetched"
}

memory=${NETCLAIM_QEMU_MEMORY:-1536}
# shellcheck disable=SC2054 # QEMU's commas
cards=(
  -object memory-backend-ram,id=node0,size=$((memory / 2))M -numa node,nodeid=0,cpus=0,memdev=node0
  -object memory-backend-ram,id=node1,size=$((memory / 2))M -numa node,nodeid=1,cpus=1,memdev=node1
  -device pcie-root-port,id=port0,bus=pcie.0,chassis=1
  -netdev hubport,id=wire0,hubid=0 -device igb,bus=port0,netdev=wire0,mac=52:54:00:00:00:10,romfile=
  -device pxb-pcie,id=root1,bus_nr=64,numa_node=1 -device pcie-root-port,id=port1,bus=root1,chassis=2
  -netdev hubport,id=wire1,hubid=0 -device igb,bus=port1,netdev=wire1,mac=52:54:00:00:00:20,romfile=
)
program=$("$root/tests/qemu/qemu.sh") || {
  echo "    no network cards with virtual functions, as said above" >&2
  program=qemu-system-x86_64 cards=()
}

disk=()
[[ -z ${NETCLAIM_QEMU_DISK:-} ]] ||
  disk=(-drive "file=$NETCLAIM_QEMU_DISK,format=raw,if=none,id=disk,cache=unsafe" -device "virtio-blk-pci,bus=pcie.0,drive=disk")

run=$(mktemp -d)
qemu=
finish() {
  end
  rm -rf "$run"
}
trap finish EXIT
trap 'exit 130' INT TERM

ln -s "$kernel/modules" "$run/modules"
printf 'export PATH=%q HOME=/root\ncd %q\nexec' "$PATH" "$PWD" >"$run/job"
printf ' %q' "$@" >>"$run/job"
cat >"$run/first" <<'END'
# The guest's first process that sees this machine's files.
output=/dev/$(cd /sys/class/virtio-ports && grep -lx output */name | cut -d/ -f1)
status=/dev/$(cd /sys/class/virtio-ports && grep -lx status */name | cut -d/ -f1)
echo begun >"$status"
mkdir -p /lib/modules
mount --bind "$run/modules/" /lib/modules
ip link set lo up
# Without udev, nothing else loads these.
modprobe --all igb igbvf tun
bash "$run/job" </dev/null &>"$output"
echo $? >"$status"
# Off, without a sync.
echo o >/proc/sysrq-trigger
sleep 60
END
touch "$run/output"

# boot ACCELERATOR CPU: starts the machine; succeeds when its first process has begun. The kernel panics, and reports the
# place, if a task hangs for two minutes.
boot() {
  : >"$run/status"
  timeout --kill-after=5 "$limit" "$program" -machine q35 -accel "$1" -cpu "$2" -smp 2 -m "$memory" -no-reboot \
    -nodefaults -display none -kernel "$kernel/vmlinuz" -initrd "$kernel/initramfs" -serial "file:$run/console" \
    -append "console=ttyS0 panic=-1 hung_task_panic=1 loglevel=4 run=$run" \
    -virtfs local,id=host,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -device virtio-serial-pci \
    -chardev "file,id=output,path=$run/output" -device virtserialport,chardev=output,name=output \
    -chardev "file,id=status,path=$run/status" -device virtserialport,chardev=status,name=status \
    "${cards[@]}" "${disk[@]}" </dev/null &>"$run/qemu" &
  qemu=$!
  wait_for 120 begun_or_ended && begun
}
begun() { [[ -s $run/status ]]; }
begun_or_ended() { begun || ! kill -0 "$qemu"; }
end() {
  [[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true
  wait "$qemu" 2>/dev/null || true
  qemu=
}

limit=${NETCLAIM_QEMU_TIMEOUT:-1800}
begin=$SECONDS
booted=
# KVM needs support of the processor. If it does not start the machine, the processor is emulated.
for accel in ${NETCLAIM_QEMU_ACCEL:-$(grep -qwE 'vmx|svm' /proc/cpuinfo && [[ -w /dev/kvm ]] && echo kvm) tcg}; do
  echo "==> a virtual machine, $accel" >&2
  cpu=$([[ $accel == kvm ]] && echo host || echo max)
  if boot "$accel" "$cpu"; then
    booted=yes
    break
  fi
  end
  echo "    does not start" >&2
done
if [[ -n $booted ]]; then
  echo "    started in $(elapsed $((SECONDS - begin)))" >&2
  # In the background: bash handles signals only after a command in the foreground.
  tail -q -n +1 -f --pid="$qemu" "$run/output" &
  wait $!
  end
fi
status=$(tail -n 1 "$run/status")
if [[ ! $status =~ ^[0-9]+$ ]]; then
  log=$cache/log/qemu-$$.log
  cat "$run"/{qemu,console} >"$log"
  tail -n 30 "$log" | sed 's/^/    | /' >&2
  die "the machine ended before the command, or was killed after $limit s (NETCLAIM_QEMU_TIMEOUT); its console: $log"
fi
exit "$status"
