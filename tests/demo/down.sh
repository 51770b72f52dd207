#!/bin/bash
# down.sh: ends the demo and removes its cluster; only the build cache stays.
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"
dir=${NETCLAIM_DEMO_DIR:-/var/tmp/netclaim-demo}
"$here/down.sh" "$dir"
# Only the logs are left. A folder with other files stays.
rm -rf "$dir/log"
[[ ! -d $dir ]] || rmdir "$dir"
echo "demo: gone; what was built stays in $cache (make clean removes it)"
