#!/bin/bash
# release.sh [FILES]: tests what is released, as it is: the images, the chart's archive, netclaim.yaml, the folder deploy/ and
# netclaimctl in FILES, which `make release` has written; without FILES, new ones of this work tree, for this machine's architecture.
# Scenarios of pods that get their networks run on an installation of netclaim.yaml, with the times that users have. Then the chart,
# netclaim.yaml and deploy/ are installed one after the other, serve the pods of the examples, and leave nothing behind. Last, the
# release before this one, if the repository has its tag, is upgraded to the files and rolled back. As root.
set -euo pipefail
# shellcheck source=node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/lib.sh"
[[ $# -le 1 ]] || die "usage: release.sh [FILES]"
cd "$root"
begin=$SECONDS
((EUID == 0)) || die "run me as root: Kubernetes nodes are started"
if (($#)); then
  release=$(realpath "$1")
else
  release=$root/target/release-test
  rm -rf "$release"
  case $machine in
  aarch64) NETCLAIM_ARCHITECTURES=arm64 ;;
  *) NETCLAIM_ARCHITECTURES=amd64 ;;
  esac
  export NETCLAIM_ARCHITECTURES
  deploy/release/build.sh "$release" registry.example.com/netclaim
fi
(cd "$release" && sha256sum --check --quiet --strict SHA256SUMS) || die "$release: SHA256SUMS names other files"
version=$(cd "$release" && echo netclaim-*-deploy.tar.gz)
version=${version#netclaim-}
version=${version%-deploy.tar.gz}

tests/node/build.sh
tests/programs/build.sh helm >/dev/null
export NETCLAIM_RELEASE=$release NETCLAIM_AS_RELEASED=1
from=$(git -c safe.directory="$root" describe --tags --abbrev=0 --match 'v*' --exclude "v$version" 2>/dev/null || true)
if [[ $from ]]; then
  export NETCLAIM_UPGRADE_FROM=$from
else
  echo "SKIPPED CASE: an upgrade to $version: no release is before it"
fi
cargo test --workspace --test cluster --locked -- attaching::
cargo test --workspace --test install --locked -- the_files_of_a_release
[[ -z $from ]] || cargo test --workspace --test install --locked -- an_earlier_version
echo "test-release: ok: $version in $release, after $(elapsed $((SECONDS - begin)))"
