#!/bin/bash
# build.sh OUT.tar [NAME]: builds netclaim and packs it as an image archive, by default named
# localhost/netclaim:dev, for `ctr -n k8s.io images import` or `podman load`. Needs Rust and Go, no container engine.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { echo "usage: build.sh OUT.tar [NAME]" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
out=$(realpath -m "$1")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
rootfs=$(mktemp -d)
trap 'rm -rf "$rootfs"' EXIT

"$here/binaries.sh" "$rootfs"
cd "$here/archive"
CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go run . -name "${2:-localhost/netclaim:dev}" -out "$out.new" "$rootfs"
mv "$out.new" "$out"
