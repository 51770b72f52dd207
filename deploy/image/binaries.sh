#!/bin/bash
# binaries.sh DIR: fills DIR with the files of the image: static binaries of Cargo's profile $NETCLAIM_PROFILE (by
# default release), with the Cargo features of $NETCLAIM_FEATURES (for tests).
set -euo pipefail
[[ $# == 1 ]] || { echo "usage: binaries.sh DIR" >&2; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${NETCLAIM_PROFILE:-release}
target=$(uname -m)-unknown-linux-gnu
packages=(netclaim-kubelet-plugin netclaim-hook netclaim-controller netclaim-cli netclaim-bandwidth)
programs=(netclaim-parent netclaim-kubelet-plugin netclaim-hook netclaim-controller netclaimctl)

# The C library too: an image without one, and a hook that runs on any host.
# --target keeps the flags away from build scripts and procedural macros, which cannot be static.
# A static program relocates itself: packed, its relocations take a few KB instead of 1 MB.
RUSTFLAGS='-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs' \
  cargo build --profile "$profile" --locked --target "$target" "${packages[@]/#/--package=}" --bins --features "${NETCLAIM_FEATURES:-}"
folder=${CARGO_TARGET_DIR:-target}/$target/$profile
mkdir -p "$out"/{usr/bin,usr/libexec/cni,var,run,tmp}
cp "${programs[@]/#/$folder/}" "$out/usr/bin/"
# CNI plugins have a folder of their own: what is in it may be named in a Network.
cp "$folder/netclaim-bandwidth" "$out/usr/libexec/cni/"
# As on a host: both names of a socket's folder lead to the same mount.
ln -sfn ../run "$out/var/run"
