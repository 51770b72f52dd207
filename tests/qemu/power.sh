#!/bin/bash
# power.sh: switches a virtual machine off while agents write their journals, and looks in its next boot at what they say
# (driver/tests/power_loss.rs). Fails on a machine that cannot run a virtual machine, unless NETCLAIM_SKIP_QEMU=1 asks to
# skip it there.
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

packages jq:jq cc:gcc mkfs.ext4:e2fsprogs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
program=$(test_program netclaim-driver power_loss)
cc -shared -fPIC -o "$work/nosync.so" tests/qemu/nosync.c
truncate -s 128M "$work/disk"
for boot in before after; do
  echo "     Running power_loss in the virtual machine, $boot the power is off"
  status=0
  NETCLAIM_QEMU_DISK=$work/disk tests/qemu/vm.sh env NETCLAIM_POWER=$boot NETCLAIM_POWER_DISK=/dev/vda \
    NETCLAIM_NOSYNC="$work/nosync.so" NETCLAIM_CNI_BIN=/ "$program" --include-ignored --nocapture || status=$?
  ((status != 77)) || no_machine "the loss of power"
  ((status == 0)) || exit "$status"
done
