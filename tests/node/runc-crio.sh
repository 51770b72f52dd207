#!/bin/bash
# runc for CRI-O on a machine that does not let it lower the OOM score (no CAP_SYS_RESOURCE), where it dies of a pod
# that asks for that: such a container keeps the node's score. containerd has an option for it, CRI-O has none.
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
