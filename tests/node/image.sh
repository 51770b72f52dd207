#!/bin/bash
# image.sh DIR ARCHIVE.tar...: loads image archives into the node's container runtime.
set -euo pipefail
# shellcheck source=cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/cluster.sh"
[[ $# -ge 2 ]] || die "usage: image.sh DIR ARCHIVE.tar..."
cluster_of "$1"
shift
for archive; do
  runtime_import "$archive" >>"$dir/log/images.log" 2>&1 || failed images "cannot import $archive"
done
