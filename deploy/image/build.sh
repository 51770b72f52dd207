#!/bin/bash
# build.sh OUT.tar [NAME]: builds netclaim and packs its two images into one archive, for `ctr -n k8s.io images import`, or for skopeo,
# which takes one of them as oci-archive:OUT.tar:IMAGE. NAME, by default localhost/netclaim:dev, makes the images
# localhost/netclaim-agent:dev and localhost/netclaim-controller:dev. Needs Rust and Go, no container engine.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { echo "usage: build.sh OUT.tar [NAME]" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
out=$(realpath -m "$1")
name=${2:-localhost/netclaim:dev}
[[ ${name##*/} == ?*:?* ]] || { echo "build.sh: $name has no tag" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/binaries.sh" "$work"
cd "$here/archive"
CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go run . -out "$out.new" \
  "${name%:*}-agent:${name##*:}=$work/agent" "${name%:*}-controller:${name##*:}=$work/controller"
mv "$out.new" "$out"
