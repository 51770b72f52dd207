#!/bin/bash
# build.sh OUT.tar [NAME [GOARCH...]]: builds the reference CNI plugins that go.mod beside this script pins, for this machine or for
# others, and packs them as an image archive, by default named localhost/cni-plugins:VERSION: for the value plugins.image of the
# chart. The plugins are in its root; usr/bin has copy-plugins, for clusters without image volumes. Needs Go, no container engine.
set -euo pipefail
# The init container that copies them is not root.
umask 022
[[ $# -ge 1 ]] || { echo "usage: build.sh OUT.tar [NAME [GOARCH...]]" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
out=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
export CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false -mod=readonly" GOWORK=off
module=github.com/containernetworking/plugins
version=$(go list -m -f '{{.Version}}' "$module")
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT

name=${2:-localhost/cni-plugins:$version}
architectures=("${@:3}")
((${#architectures[@]})) || architectures=("$(go env GOARCH)")
folders=()
for arch in "${architectures[@]}"; do
  folders+=("$name=$arch=$rootfs/$arch")
  mkdir -p "$rootfs/$arch/usr/bin"
  GOARCH=$arch go build -o "$rootfs/$arch/" -ldflags "-s -w -X $module/pkg/utils/buildversion.BuildVersion=$version" tool
  GOARCH=$arch go build -o "$rootfs/$arch/usr/bin/" -ldflags "-s -w" ./copy-plugins
done
cd ../image/archive
go run . -out "$out.new" "${folders[@]}"
mv "$out.new" "$out"
