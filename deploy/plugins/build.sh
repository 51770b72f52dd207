#!/bin/bash
# build.sh OUT.tar [NAME]: builds the reference CNI plugins that go.mod beside this script pins, and packs them as an image archive,
# by default named localhost/cni-plugins:VERSION: for the value plugins.image of the chart. Needs Go, no container engine.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { echo "usage: build.sh OUT.tar [NAME]" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
out=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly" GOWORK=off
module=github.com/containernetworking/plugins
version=$(go list -m -f '{{.Version}}' "$module")
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT

go build -o "$rootfs/" -ldflags "-s -w -X $module/pkg/utils/buildversion.BuildVersion=$version" tool
cd ../image/archive
go run . -name "${2:-localhost/cni-plugins:$version}" -out "$out.new" "$rootfs"
mv "$out.new" "$out"
