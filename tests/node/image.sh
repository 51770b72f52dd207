#!/bin/bash
# image.sh DIR ARCHIVE.tar...: loads image archives into the container runtimes of all nodes.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# -ge 2 ]] || die "usage: image.sh DIR ARCHIVE.tar..."
cluster_of "$1"
shift
# load ARCHIVE: loads it into the selected node's runtime.
load() { runtime_import "$1" >>"$dir/log/images.log" 2>&1 || failed images "cannot import $1 on $node"; }
for archive; do
  each_node load "$archive"
done
