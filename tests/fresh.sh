#!/bin/bash
# fresh.sh [COMMAND...]: runs `make demo`, `make demo-down` and `make test`, or COMMAND, in a minimal Debian and a copy of
# this work tree. The Debian is a folder that debootstrap fills. It shares with this machine the kernel, the network, Rust,
# Go, their caches, $NETCLAIM_CACHE, and the settings for package registries: proxies, mirrors, certificates. Needs Debian,
# root, and 20 GB on a real file system.
#
# fresh.sh --here [COMMAND...]: a shell there, or COMMAND, in this work tree itself instead of a copy. What a build needs is
# installed first; what it makes is kept in $NETCLAIM_CACHE/fresh-target.
#
# NETCLAIM_FRESH_DIR: the folder (default /var/tmp/netclaim-fresh). After a failure it stays until the next run.
# NETCLAIM_FRESH_SUITE=noble: Ubuntu 24.04 instead of this machine's Debian, from the mirror NETCLAIM_FRESH_MIRROR. With
# `jammy` it is Ubuntu 22.04.
set -euo pipefail
# shellcheck source=node/cluster.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/cluster.sh"
fresh=$(realpath -m "${NETCLAIM_FRESH_DIR:-/var/tmp/netclaim-fresh}")
debian=$fresh/root

# enter ROOT CACHE COMMAND...: runs COMMAND with ROOT as its root. The mount and process namespaces end with it, so nothing
# stays mounted and no process is left. A chroot is not enough: nsenter leads out of it.
enter() {
  local debian=$1 cache=$2 go_modules go_cache
  shift 2
  go_modules=$(go env GOMODCACHE) go_cache=$(go env GOCACHE)
  # as FOLDER PATH: mounts a folder of this machine at PATH.
  as() { mkdir -p "$1" "$debian$2" && mount --bind "$1" "$debian$2"; }
  mount --bind "$debian" "$debian"
  mount -t proc proc "$debian/proc"
  mount --rbind /sys "$debian/sys"
  mount --rbind /dev "$debian/dev"
  as "${RUSTUP_HOME:-$HOME/.rustup}" /root/.rustup
  as "${CARGO_HOME:-$HOME/.cargo}" /root/.cargo
  as "$(go env GOROOT)" /usr/local/go
  as "$go_modules" /root/go/pkg/mod
  as "$go_cache" /root/.cache/go-build
  as "$cache" /root/.cache/netclaim
  if [[ -n ${NETCLAIM_FRESH_HERE:-} ]]; then
    as "$root" /netclaim
    as "$cache/fresh-target" /netclaim/target
  fi
  cd "$debian"
  pivot_root . .
  umount -l .
  cd /netclaim
  exec env -i "${registries[@]}" HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/root/.cargo/bin:/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    bash -euc '. tests/node/lib.sh; packages make:make; exec "$@"' - "$@"
}

# Variables of apt-get, Cargo and Go for their registries.
registries=(SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt)
for name in $(compgen -e); do
  case $name in
  http_proxy | https_proxy | no_proxy | all_proxy | HTTP_PROXY | HTTPS_PROXY | NO_PROXY | ALL_PROXY | \
    CARGO_HTTP_* | CARGO_NET_* | CARGO_REGISTR* | CARGO_SOURCE_* | RUSTUP_AUTO_INSTALL | \
    GOPROXY | GONOPROXY | GOPRIVATE | GOSUMDB | GONOSUMDB | GOINSECURE | GOTOOLCHAIN) registries+=("$name=${!name}") ;;
  esac
done
if [[ ${1:-} == --enter ]]; then
  shift
  enter "$@"
fi
if [[ ${1:-} == --here ]]; then
  shift
  (($#)) || set -- bash -c 'bash || true'
  set -- bash -ec 'tests/packages.sh build; tests/packages.sh test; exec "$@"' - "$@"
  export NETCLAIM_FRESH_HERE=1
fi

((EUID == 0)) || die "run me as root: the fresh Debian starts Kubernetes nodes"
for tool in cargo go git; do
  command -v "$tool" >/dev/null || die "no $tool"
done
packages debootstrap:debootstrap
# remove_cgroups: removes the cgroups of nodes that have ended; nothing else of a node outlives its processes.
remove_cgroups() {
  local link c
  for link in "$debian$slots"/*; do
    slot=${link##*/} cgroup=netclaim-$slot
    # Without links the pattern is the name. A cluster of the machine may have taken the slot since.
    [[ $slot =~ ^[0-9]+$ && ! -L $slots/$slot ]] || continue
    for c in $(cgroup_dirs); do
      [[ ! -d $c ]] || find "$c" -depth -type d -exec rmdir {} + || true
    done
  done
}

mkdir -p "$fresh"
[[ -z $(ls -A "$fresh") || $(ls -A "$fresh") == root ]] || die "$fresh holds other files: choose another folder"
exec {lock}<"$fresh"
flock -n "$lock" || die "another run is using $fresh"
rm -rf --one-file-system "$debian"
mkdir "$debian"

# ubuntu_key DIR: fetches the key of Ubuntu's archive, which Debian does not have, from the archive. It is known by its fingerprint.
ubuntu_key() {
  wget -q -O "$1/keyring.deb" "$mirror/pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb" &&
    dpkg-deb --fsys-tarfile "$1/keyring.deb" | tar -xO ./usr/share/keyrings/ubuntu-archive-keyring.gpg >"$1/all.gpg" &&
    gpg --quiet --homedir "$1" --no-default-keyring --keyring "$1/all.gpg" \
      --export F6ECB3762474EDA9D21B7022871920D1991BC93C >"$1/archive.gpg" &&
    [[ -s $1/archive.gpg ]]
}

eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
[[ -z ${http_proxy:-} ]] || export http_proxy
[[ -z ${https_proxy:-} ]] || export https_proxy
suite=${NETCLAIM_FRESH_SUITE:-}
case $suite in
jammy | noble)
  mirror=${NETCLAIM_FRESH_MIRROR:-}
  [[ -n $mirror ]] || die "NETCLAIM_FRESH_MIRROR is not set: it is the URL of a mirror of Ubuntu's archive"
  packages gpg:gpg wget:wget
  keys=$(mktemp -d)
  ubuntu_key "$keys" || die "the key of $mirror is not there, or is not the one that is known"
  step "a fresh Ubuntu $suite in $debian" "$cache/log/fresh.log" debootstrap --variant=minbase --components=main,universe \
    --keyring="$keys/archive.gpg" "$suite" "$debian" "$mirror" gutsy
  rm -r "$keys"
  ;;
"")
  # The machine's release of Debian, from its mirror of the package debootstrap.
  # shellcheck source=/dev/null
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mirror=$(apt-get download --print-uris debootstrap | sed -n "s|^'\(.*\)/pool/.*|\1|p")
  [[ -n $mirror ]] || die "apt-get does not know where debootstrap comes from: apt-get update"
  step "a fresh Debian $suite in $debian" "$cache/log/fresh.log" debootstrap --variant=minbase "$suite" "$debian" "$mirror"
  ;;
*) die "NETCLAIM_FRESH_SUITE is noble, jammy or empty, and not $suite" ;;
esac
apt-config dump | grep -E '^Acquire::(https?|Check|Retries)' >"$debian/etc/apt/apt.conf.d/90machine" || true
for file in /etc/resolv.conf /etc/hosts; do
  cp -L "$file" "$debian$file"
done
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[[ ! -e $certificates ]] || install -D -m 644 "$certificates" "$debian/etc/ssl/certs/ca-certificates.crt"
settings=$(go env GOENV)
[[ ! -e $settings ]] || install -D -m 644 "$settings" "$debian/root/.config/go/env"
mkdir "$debian/netclaim"
[[ -n ${NETCLAIM_FRESH_HERE:-} ]] || git -C "$root" -c safe.directory="$root" ls-files -z --cached --others --exclude-standard |
  tar -C "$root" --null --files-from=- --ignore-failed-read -c | tar -C "$debian/netclaim" -x

# shellcheck disable=SC2016 # a script for another shell
(($#)) || set -- bash -c 'failed=
  for target in demo demo-down test; do
    echo "==> make $target" >&2
    make "$target" || failed+=" $target"
  done
  [[ -z $failed ]] || { echo "failed:$failed" >&2; exit 1; }'
begin=$SECONDS status=0
trap remove_cgroups EXIT
# The command must not inherit the lock: a process that it leaves behind would hold it.
unshare --mount --propagation private --pid --fork --kill-child "$root/tests/fresh.sh" --enter "$debian" "$cache" "$@" \
  {lock}<&- || status=$?
((status == 0)) || die "failed after $(elapsed $((SECONDS - begin))) (exit $status); its files are in $debian"
rm -rf --one-file-system "$debian"
echo "fresh: ok after $(elapsed $((SECONDS - begin)))"
