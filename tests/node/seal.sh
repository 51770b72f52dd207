#!/bin/bash
# seal.sh DIR [--node NODE] on|off: makes a node (node0) like one of Talos or Bottlerocket, or undoes that.
#   on   The root, /etc and /opt are read-only. What the runtime, the kubelet and netclaim write stays writable, as there: /run, /tmp,
#        /var/lib, /var/log, /opt/cni/bin and /etc/cni/net.d. Nobody on the node can run env or a shell of /etc/shells.
#   off  All is as before.
# Services are shell scripts: the runtime and the kubelet of a sealed node run on, but cannot be started. A reboot ends the seal.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
usage="usage: seal.sh DIR [--node NODE] on|off"
one_action_on_node "$usage" "$@"

# read_only_mounts: prints the mount points that a sealed node cannot write: those of file systems on disks, but for the above.
read_only_mounts() {
  local point
  in_node findmnt --raw --noheadings --output TARGET --types ext4,xfs,btrfs,overlay,ext3,ext2,f2fs,bcachefs,zfs |
    while IFS= read -r point; do
      case $point/ in
      /run/* | /var/run/* | /var/lib/* | /var/log/* | /opt/cni/bin/* | /etc/cni/net.d/* | /proc/* | /sys/* | /dev/*) ;;
      *) echo "$point" ;;
      esac
    done
}

# missing_programs: prints the programs that such a distribution lacks.
missing_programs() {
  { grep '^/' /etc/shells; command -v env; } | xargs --max-args=1 realpath --quiet --canonicalize-existing | sort -u
}

# remount ro|rw: remounts the mount points on standard input.
remount() {
  local point
  while IFS= read -r point; do
    in_node mount -o "remount,bind,$1" "$point" </dev/null
  done
}

# What was done, in the node's memory: a reboot ends both.
sealed=/proc/$(svc_pid "node$ending")/root/run/sealed
seal() {
  local program mounts programs
  [[ ! -e $sealed ]] || die "$node is sealed"
  mounts=$(read_only_mounts) programs=$(missing_programs)
  grep -qx / <<<"$mounts" || die "the root of $node is on no file system that this script knows"
  [[ $dir/ != /tmp/* ]] || die "$dir: a sealed node has a /tmp of its own, choose another folder"
  mkdir "$sealed"
  # In memory, as there. runc writes what `exec` is to run into it.
  in_node mount -t tmpfs -o mode=1777 netclaim /tmp
  echo "$mounts" >"$sealed/mounts"
  echo "$programs" >"$sealed/programs"
  while IFS= read -r program; do
    in_node mount --bind /dev/null "$program" </dev/null
  done <"$sealed/programs"
  remount ro <"$sealed/mounts"
}
unseal() {
  local program
  [[ -e $sealed ]] || return 0
  remount rw <"$sealed/mounts"
  while IFS= read -r program; do
    in_node umount "$program" </dev/null
  done <"$sealed/programs"
  in_node umount /tmp
  rm -r "$sealed"
}

case $action in
on) seal ;;
off) unseal ;;
*) die "$usage" ;;
esac
