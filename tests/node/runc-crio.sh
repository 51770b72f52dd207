#!/bin/bash
# runc for CRI-O without CAP_SYS_RESOURCE, where runc fails if a container requests a lower OOM score: the container keeps
# the node's score. containerd has an option for this, CRI-O has none.
set -eu
# shellcheck source=bundle.sh
. "$(dirname "${BASH_SOURCE[0]}")/bundle.sh"
# shellcheck disable=SC2016 # a variable of jq
edit_bundle '.process.oomScoreAdj |= (. // 0 | [., $least] | max)' "$@"
exec runc "$@"
