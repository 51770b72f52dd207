# shellcheck shell=bash
# For the wrappers of OCI runtimes; sourced, never run.

# edit_bundle FILTER ARGUMENTS...: changes the container's specification by a filter of jq, where an OCI runtime with these
# arguments is to make one (--bundle). $least is the OOM score of this process.
edit_bundle() {
  local filter=$1
  shift
  while (($# > 0)); do
    if [[ $1 == --bundle ]]; then
      jq --argjson least "$(</proc/self/oom_score_adj)" "$filter" "$2/config.json" >"$2/config.json.new"
      mv "$2/config.json.new" "$2/config.json"
    fi
    shift
  done
}
