#!/bin/bash
# runc for CRI-O without CAP_SYS_RESOURCE, where runc fails if a container requests a lower OOM score: the container keeps
# the node's score. containerd has an option for this, CRI-O has none.
set -eu
args=("$@")
while (($# > 0)); do
  if [[ $1 == --bundle ]]; then
    jq --argjson least "$(</proc/self/oom_score_adj)" '.process.oomScoreAdj |= (. // 0 | [., $least] | max)' \
      "$2/config.json" >"$2/config.json.new"
    mv "$2/config.json.new" "$2/config.json"
  fi
  shift
done
exec runc "${args[@]}"
