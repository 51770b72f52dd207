#!/bin/bash
# qemu.sh: finds a QEMU with igb, a network card with virtual functions (since QEMU 8.0). Prints the path of the installed
# one, or of one from Debian 12's backports, which is unpacked beside it and uses its libraries and firmware.
# shellcheck disable=SC2317 # functions that are called by name
set -euo pipefail
# shellcheck source=../node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../node/lib.sh"

# The package and its checksum are from https://packages.debian.org/bookworm-backports/amd64/qemu-system-x86/download. A
# mirror drops a version when a newer one comes; the archive of snapshots keeps it.
deb='qemu-system-x86_10.0.2+ds-2+deb13u1~bpo12+1_amd64.deb'
sha256=4a6b1856c8b0d7df4ff8e70249e12c473ccf8d516aadb4ae14d3d938faed0c65
mirrors=(http://deb.debian.org/debian http://snapshot.debian.org/archive/debian/20261101T000000Z)

fetch_qemu() {
  local mirror
  cd "$1"
  for mirror in "${mirrors[@]}"; do
    /usr/lib/apt/apt-helper download-file "$mirror/pool/main/q/qemu/$deb" deb "SHA256:$sha256" && break
  done
  dpkg -x deb tree
  mv tree/usr/bin/qemu-system-x86_64 .
  rm -r deb tree
  has_igb ./qemu-system-x86_64
}

# QEMU exits with the same status without igb.
has_igb() { [[ $("$1" -device igb,help 2>/dev/null) == "igb options:"* ]]; }

installed=$(command -v qemu-system-x86_64)
if has_igb "$installed"; then
  echo "$installed"
  exit
fi
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[[ $release == bookworm ]] || die "QEMU is older than 8.0 and has no igb: install a newer one (only Debian 12 has a known backport)"
qemu=$(artifact qemu "$root/tests/qemu/qemu.sh")
make_once "$qemu" "fetching $deb" fetch_qemu
echo "$qemu/qemu-system-x86_64"
