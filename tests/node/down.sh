#!/bin/bash
# down.sh DIR: ends the cluster in DIR, in any state, and removes everything but DIR/log. Does nothing if there is none.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# == 1 ]] || die "usage: down.sh DIR"
cluster_dir "$1"
[[ -e $dir/slot ]] || exit 0

remove_cgroups() {
  local c left=0
  for c in $(cgroup_dirs); do
    [[ ! -d $c ]] || find "$c" -depth -type d -exec rmdir {} + 2>/dev/null || left=1
  done
  return $left
}

remove_link() {
  ip link del "$link" 2>/dev/null || true
  wait_for 10 no_link || die "link $link cannot be removed"
}

if holds_slot; then
  # A node's mounts, links and addresses go with its last process.
  wait_for 20 kill_processes || die "processes survive SIGKILL: $(processes | tr '\n' ' ')"
  wait_for 20 remove_cgroups || die "cgroups cannot be removed: $(cgroup_dirs | tr '\n' ' ')"
  each_node remove_link
  rm "$slots/$slot"
fi
# A scenario that was killed leaves its slow disk; what was mounted last is unmounted first.
awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | tac | xargs -r umount -l
find "$dir" -mindepth 1 -maxdepth 1 ! -name log ! -name slot -exec rm -rf {} +
rm "$dir/slot"
exec {lock}</run
flock "$lock" # an up.sh may be using the folder
[[ ! -d $slots ]] || rmdir --ignore-fail-on-non-empty "$slots"
