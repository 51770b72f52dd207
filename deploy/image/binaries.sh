#!/bin/bash
# binaries.sh DIR [GOARCH]: fills DIR/agent and DIR/controller with the files of the two images: static binaries for this machine, or
# for amd64 or arm64. Every node pulls the first, which has only what an agent runs; netclaimctl is in the second. Cargo's profile is
# $NETCLAIM_PROFILE (by default release), its features those of $NETCLAIM_FEATURES (for tests). With $NETCLAIM_AUDITABLE they carry the
# list of their dependencies, which scanners read (cargo-auditable). $NETCLAIM_NOTICES is a file with the licences of these.
set -euo pipefail
[[ $# == 1 || $# == 2 ]] || { echo "usage: binaries.sh DIR [GOARCH]" >&2; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
profile=${NETCLAIM_PROFILE:-release}
machine=$(uname -m)
case ${2:-$machine} in
amd64 | x86_64) arch=x86_64 ;;
arm64 | aarch64) arch=aarch64 ;;
*) echo "binaries.sh: $2 is neither amd64 nor arm64" >&2; exit 2 ;;
esac
target=$arch-unknown-linux-gnu
plugins=(netclaim-bandwidth netclaim-link netclaim-route)
# netclaim-primary is a CNI plugin for the container runtime only: no ClaimNetwork may name it.
packages=(netclaim-kubelet-plugin netclaim-hook netclaim-primary netclaim-controller netclaim-cli "${plugins[@]}")
agent=(netclaim-parent netclaim-kubelet-plugin netclaim-hook netclaim-primary)
controller=(netclaim-controller netclaimctl)
build=(cargo ${NETCLAIM_AUDITABLE:+auditable} build)
if [[ $arch != "$machine" ]]; then
  linker=CARGO_TARGET_${target^^}_LINKER
  export "${linker//-/_}=$arch-linux-gnu-gcc"
fi

# The C library too: an image without one, and a hook that runs on any host.
# --target keeps the flags away from build scripts and procedural macros, which cannot be static.
# A static program relocates itself: packed, its relocations take a few KB instead of 1 MB.
RUSTFLAGS='-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs' \
  "${build[@]}" --profile "$profile" --locked --target "$target" "${packages[@]/#/--package=}" --bins --features "${NETCLAIM_FEATURES:-}"
folder=${CARGO_TARGET_DIR:-target}/$target/$profile
for image in agent controller; do
  mkdir -p "$out/$image"/usr/{bin,share/licenses/netclaim}
  cp LICENSE ${NETCLAIM_NOTICES:+"$NETCLAIM_NOTICES"} "$out/$image/usr/share/licenses/netclaim/"
done
cp "${agent[@]/#/$folder/}" "$out/agent/usr/bin/"
cp "${controller[@]/#/$folder/}" "$out/controller/usr/bin/"
mkdir -p "$out"/agent/{usr/libexec/cni,var,run,tmp} "$out/controller/tmp"
# CNI plugins have a folder of their own: what is in it may be named in a ClaimNetwork.
cp "${plugins[@]/#/$folder/}" "$out/agent/usr/libexec/cni/"
# As on a host: both names of a socket's folder lead to the same mount.
ln -sfn ../run "$out/agent/var/run"
