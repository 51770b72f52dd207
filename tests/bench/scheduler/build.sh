#!/bin/bash
# build.sh: builds the pinned kube-scheduler with the patches of this folder, and prints its path. `make test-scale` measures it
# with NETCLAIM_SCHEDULER=PATH.
#   build.sh [PATCH...]    only these patches; "none" for a scheduler without any
# The patched module is a copy: the module cache stays as it is. What each patch is for:
#   1  a shared device without counters needs no look at all shares of the cluster (1.37 looks for every one)
#   2  such a look is one in a set, made once for a pod (upstream: kubernetes/kubernetes#142014, for 1.38)
set -euo pipefail
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../../node/lib.sh
. "$bench/../../node/lib.sh"
packages patch:patch jq:jq

module=k8s.io/dynamic-resource-allocation kubernetes=$bench/../../node/kubernetes
if (($# == 0)); then
  patches=("$bench"/*.patch)
elif [[ $1 == none ]]; then
  patches=()
else
  patches=("$@")
fi
names=$(for patch in "${patches[@]}"; do basename "$patch" | cut -d- -f1; done | paste -sd+)
out=${CARGO_TARGET_DIR:-$root/target}/bench/scheduler-${names:-none}
rm -rf "$out"
mkdir -p "$out"

export CGO_ENABLED=0 GOWORK=off GOFLAGS=$go_flags
cd "$kubernetes"
source=$(go mod download -json "$module@$(go list -m -f '{{with .Replace}}{{.Version}}{{end}}' "$module")" | jq -r .Dir)
cp -r "$source" "$out/module"
chmod -R u+w "$out/module"
for patch in "${patches[@]}"; do
  patch --quiet --strip 1 --directory "$out/module" <"$patch" || die "$patch does not fit $source"
done
cp go.mod "$out/go.mod"
cp go.sum "$out/go.sum"
go mod edit -replace "$module=$out/module" "$out/go.mod"
go build -modfile "$out/go.mod" -ldflags "-s -w" -o "$out/kube-scheduler" k8s.io/kubernetes/cmd/kube-scheduler >&2
echo "$out/kube-scheduler"
