#!/bin/bash
# Builds what a node needs that no package of Debian is fit for: Kubernetes and etcd,
# containerd, the CNI plugins, two small images, and another container runtime where $NETCLAIM_RUNTIME asks for it (see
# runtime.sh), another Kubernetes where $NETCLAIM_KUBERNETES does (see use_kubernetes), an image of the control plane where
# $NETCLAIM_BOOTSTRAP does (see kubeadm.sh). Everything comes from Go modules
# pinned by the go.sum files beside this script, and from Debian (runc, crun, busybox). The results are
# kept in $NETCLAIM_CACHE (default ~/.cache/netclaim); a second run takes no time.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=runtime.sh
. "$here/runtime.sh"
# shellcheck source=kubeadm.sh
. "$here/kubeadm.sh"
use_runtime "${NETCLAIM_RUNTIME:-containerd}"
use_kubernetes "${NETCLAIM_KUBERNETES:-newest}"

packages runc:runc crun:crun busybox:busybox-static jq:jq ip:iproute2 openssl:openssl nft:nftables nsenter:util-linux sysctl:procps mkfs.ext4:e2fsprogs
command -v go >/dev/null || die "no Go: install Go $(awk '$1 == "go" { print $2 }' "$here/runtime/go.mod") or newer (https://go.dev/dl)"
export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off

build_kubernetes() {
  local minor=${kubernetes_version#1.} v=k8s.io/component-base/version name
  # Without these the API server calls itself v0.0.0, and the clients believe it.
  (cd "$here/kubernetes" && go build -modfile "$kubernetes_module.mod" -o "$1/kubernetes" -ldflags "-s -w -X $v.gitVersion=v$kubernetes_version \
    -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*}" .)
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl; do
    ln -s kubernetes "$1/$name"
  done
}

# build_stock OUT: containerd 2.3 and, for every node, the CNI plugins.
build_stock() {
  build_containerd "$1" runtime
  (
    cd "$here/runtime"
    mkdir "$1/cni"
    # shellcheck disable=SC2046 # a list of words
    go build -o "$1/cni/" \
      -ldflags "-s -w -X github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion=v$plugins_version" \
      $(go mod edit -json | jq -r '.Tool[].Path' | grep containernetworking/plugins)
  )
}

build_images() {
  local work=$1/work applet
  mkdir -p "$work"/{pause,busybox/bin,busybox/tmp}
  (cd "$here/pause" && go build -ldflags "-s -w" -o "$work/pause/pause" .)
  if ldd "$(command -v busybox)" &>/dev/null; then
    echo "this busybox needs libraries that the image has not: apt-get install busybox-static" >&2
    return 1
  fi
  cp "$(command -v busybox)" "$work/busybox/bin/busybox"
  for applet in $(busybox --list); do
    [[ $applet == busybox ]] || ln -s busybox "$work/busybox/bin/$applet"
  done
  (
    cd "$root/deploy/image/archive"
    go run . -entrypoint /pause -out "$1/pause.tar" "localhost/pause:1=$work/pause"
    go run . -out "$1/busybox.tar" "localhost/busybox:1=$work/busybox"
  )
  rm -rf "$work"
}

make_once "$kubernetes_bin" "building Kubernetes $kubernetes_version (first time: 6 to 10 minutes on two cores)" build_kubernetes
make_once "${plugins_bin%/cni}" "building containerd $(module_version runtime github.com/containerd/containerd/v2) and the CNI plugins $plugins_version (first time: 1 to 3 minutes)" build_stock
build_runtime
make_once "$images" "making the images pause and busybox" build_images
bootstrap=${NETCLAIM_BOOTSTRAP:-services}
! by_kubeadm || make_once "$(kubeadm_images)" "making the image of a control plane" build_kubeadm_images
