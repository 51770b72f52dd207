#!/bin/bash
# build.sh OUT REGISTRY [DOCS]: builds a release into the folder OUT, as the workflow .github/workflows/release.yml publishes it; REGISTRY
# is where its images are going to be, as ghcr.io/netclaim, and DOCS where its pages can be read (the chart's docsURL). Needs Debian, Rust
# and Go; as root it installs what else is missing. $NETCLAIM_ARCHITECTURES is for tests, which do not need both, and
# $NETCLAIM_RELEASE_PROFILE for those that cannot wait for Cargo's profile `release`.
#
#   netclaim-agent-VERSION.oci.tar       the image of the agents, for amd64 and arm64
#   netclaim-controller-VERSION.oci.tar  the image of the controller and of netclaimctl, likewise
#   cni-plugins-VERSION.oci.tar          the reference plugins' image, likewise, with the plugins' version
#   netclaim-VERSION.tgz                 the chart, with REGISTRY as the place of its images (chart.sh)
#   netclaim.yaml                        the same for kubectl apply -f
#   netclaim-VERSION-deploy.tar.gz       deploy/ for kubectl apply -k, with what is optional: monitoring, examples
#   netclaimctl-linux-ARCH.tar.gz        netclaimctl, also as a plugin of kubectl; manual pages, completion scripts; for /usr/local
#   netclaim-agent.cdx.json              what the programs of an image are made of (CycloneDX), by the lists that they carry
#   netclaim-controller.cdx.json         the same of the other image
#   THIRD-PARTY.txt                      the licences of these crates; the images and netclaimctl's archive have it, too
#   SHA256SUMS                           of what is downloaded: all but the images
set -euo pipefail
# shellcheck source=../../tests/node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tests/node/lib.sh"
[[ $# == 2 || $# == 3 ]] || die "usage: build.sh OUT REGISTRY [DOCS]"
mkdir -p "$1"
out=$(realpath "$1") registry=$2 docs=${3:-}
[[ -z $(ls -A "$out") ]] || die "$out is not empty"
cd "$root"
auditable_version=0.7.7
cdx_version=0.1.0
rust_targets=()
read -ra architectures <<<"${NETCLAIM_ARCHITECTURES:-amd64 arm64}"

machines() { # the compilers of the architectures that this machine does not have
  packages cc:build-essential jq:jq
  case $machine:${architectures[*]} in
  # The C++ compiler brings the C library of the other architecture, which the C compiler only recommends.
  x86_64:*arm64*) packages aarch64-linux-gnu-g++:g++-aarch64-linux-gnu ;;
  aarch64:*amd64*) packages x86_64-linux-gnu-g++:g++-x86-64-linux-gnu ;;
  x86_64:* | aarch64:*) ;;
  *) die "a release is built on amd64 or arm64, and this is $machine" ;;
  esac
  local arch
  for arch in "${architectures[@]}"; do
    case $arch in
    amd64) rust_targets+=(x86_64-unknown-linux-gnu) ;;
    arm64) rust_targets+=(aarch64-unknown-linux-gnu) ;;
    *) die "$arch is neither amd64 nor arm64" ;;
    esac
  done
  ! command -v rustup >/dev/null || rustup target add "${rust_targets[@]}"
}

install_tools() {
  cargo install --quiet --locked --version "$auditable_version" cargo-auditable --root "$1"
  cargo install --quiet --locked --version "$cdx_version" auditable2cdx --root "$1"
}

machines
tools=$(artifact release-tools "$root/rust-toolchain.toml" -- "$auditable_version" "$cdx_version" "$machine")
make_once "$tools" "installing cargo-auditable $auditable_version and auditable2cdx $cdx_version (once)" install_tools
export PATH=$tools/bin:$PATH NETCLAIM_AUDITABLE=1 NETCLAIM_PROFILE=${NETCLAIM_RELEASE_PROFILE:-release}
version=$(cargo metadata --no-deps --format-version 1 --locked | jq -r '.packages[] | select(.name == "netclaim-cli").version')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# pack DIR OUT FILE...: packs what is in DIR. The same files make the same archive.
pack() {
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX -C "$1" -c "${@:3}" | gzip -n9 >"$2"
}

# manuals NETCLAIMCTL DIR: fills DIR with manual pages and completion scripts, where package managers look for them.
manuals() {
  local share=$2/share
  mkdir -p "$share"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
  "$1" man "$share/man/man1"
  "$1" completion bash >"$share/bash-completion/completions/netclaimctl"
  "$1" completion zsh >"$share/zsh/site-functions/_netclaimctl"
  "$1" completion fish >"$share/fish/vendor_completions.d/netclaimctl.fish"
}

deploy/release/notices.sh "$out/THIRD-PARTY.txt"
export NETCLAIM_NOTICES=$out/THIRD-PARTY.txt
for arch in "${architectures[@]}"; do
  step "building netclaim $version for $arch (about 5 minutes on two cores)" "$cache/log/release-$arch.log" \
    deploy/image/binaries.sh "$work/$arch" "$arch"
done
case $machine in
x86_64) own=$work/amd64 ;;
aarch64) own=$work/arm64 ;;
esac
manuals "$own/controller/usr/bin/netclaimctl" "$work/manuals"
for image in agent controller; do
  # Both architectures have the same crates.
  mapfile -t programs < <(find "$own/$image/usr/bin" "$own/$image/usr/libexec" -type f 2>/dev/null)
  deploy/release/sbom.sh "netclaim-$image" "$version" "$out/THIRD-PARTY.txt" "${programs[@]}" >"$out/netclaim-$image.cdx.json"
done
for arch in "${architectures[@]}"; do
  cp -r "$work/manuals" "$work/$arch-cli"
  mkdir -p "$work/$arch-cli/bin" "$work/$arch-cli/share/doc/netclaim"
  cp LICENSE "$out/THIRD-PARTY.txt" "$work/$arch-cli/share/doc/netclaim/"
  cp "$work/$arch/controller/usr/bin/netclaimctl" "$work/$arch-cli/bin/"
  # The plugin of kubectl, and what completes its command line.
  ln -s netclaimctl "$work/$arch-cli/bin/kubectl-netclaim"
  ln -s netclaimctl "$work/$arch-cli/bin/kubectl_complete-netclaim"
  pack "$work/$arch-cli" "$out/netclaimctl-linux-$arch.tar.gz" bin share
done
(
  cd deploy/image/archive
  export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off
  for image in agent controller; do
    folders=()
    for arch in "${architectures[@]}"; do
      folders+=("$registry/netclaim-$image:$version=$arch=$work/$arch/$image")
    done
    go run . -out "$out/netclaim-$image-$version.oci.tar" "${folders[@]}"
  done
)
deploy/plugins/build.sh "$out/cni-plugins-$plugins_version.oci.tar" "$registry/cni-plugins:$plugins_version" "${architectures[@]}"

deploy/release/chart.sh "$out" "$registry" "$version" "$docs"
mkdir "$work/deploy"
cp -r deploy/{crds,examples,host-mounts,manifests,monitoring,whereabouts-stopped} "$work/deploy/"
for image in netclaim-{agent,controller}; do
  sed -i "/^- name: localhost\/$image$/ { n; s|.*|  newName: $registry/$image\n  newTag: $version| }" "$work/deploy/manifests/kustomization.yaml"
  grep -q "newName: $registry/$image$" "$work/deploy/manifests/kustomization.yaml" || die "deploy/manifests does not name the image $registry/$image"
done
[[ -z $docs ]] || sed -i "s|https://github.com/netclaim/netclaim/blob/main/docs|${docs%/}|" "$work/deploy/monitoring/alerts.yaml"
pack "$work" "$out/netclaim-$version-deploy.tar.gz" deploy
cd "$out"
# The images have digests of their own, which are signed.
sha256sum -- *.tgz *.tar.gz netclaim*.yaml *.cdx.json THIRD-PARTY.txt >"$work/SHA256SUMS"
mv "$work/SHA256SUMS" .
ls -l "$out" >&2
