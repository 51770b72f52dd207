# shellcheck shell=bash disable=SC2034,SC2154 # shared with the scripts that source this after lib.sh
# A cluster that kubeadm makes, as users have it: etcd and the control plane are static pods of node0, which has the taint of a
# control plane. kube-proxy is on each node, and the other nodes join by a token. Sourced by cluster.sh, never run.
#
# In place of systemd, kubelet.sh starts the kubelet. There is no CoreDNS, as in the other clusters. The images have the programs
# that the other clusters have as services.

# by_kubeadm: whether kubeadm makes, or has made, the cluster.
by_kubeadm() { [[ $bootstrap == kubeadm ]]; }

# kubeadm_addresses: sets the addresses that are others than in a cluster of services: the API server is on node0.
kubeadm_addresses() {
  api_ip=$node_ips api_url=https://$node_ips:6443
  services_nets=10.98.$slot.0/24 dns_ips=10.98.$slot.10
}

# kubeadm_boot: gives the selected node, which has just booted, what kubeadm writes to its disk, and the names of all nodes: it has
# no name server.
kubeadm_boot() {
  local name number=${node#node}
  { echo "127.0.0.1 localhost" && each_node kubeadm_host; } >"$dir/hosts"
  select_node "$number"
  in_node mount --bind "$dir/hosts" /etc/hosts
  for name in kubernetes:/etc/kubernetes etcd:/var/lib/etcd; do
    mkdir -p "$dir/node$ending/${name%%:*}"
    in_node mkdir -p "${name#*:}"
    in_node mount --bind "$dir/node$ending/${name%%:*}" "${name#*:}"
  done
}

kubeadm_host() { echo "$node_ips $node"; }

# kubeadm_images: the folder with the archive of an image that has all programs.
kubeadm_images() {
  artifact kubeadm "$root/deploy/image/archive/main.go" -- "$kubernetes_bin" "$(declare -f build_kubeadm_images)"
}

# build_kubeadm_images OUT
build_kubeadm_images() {
  local rootfs=$1/rootfs name library
  mkdir -p "$rootfs/usr/"{bin,local/bin}
  cp "$kubernetes_bin/kubernetes" "$rootfs/usr/bin/"
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
    ln -s kubernetes "$rootfs/usr/bin/$name"
  done
  # Its pods name it by its path, and it calls nft.
  ln -s /usr/bin/kubernetes "$rootfs/usr/local/bin/kube-proxy"
  cp "$(command -v nft)" "$rootfs/usr/bin/"
  for library in $(ldd "$(command -v nft)" | grep -o '/[^ ]*'); do
    install -D "$library" "$rootfs$library"
  done
  (cd "$root/deploy/image/archive" && go run . -out "$1/kubernetes.tar" "localhost/kubernetes:1=$rootfs")
  rm -r "$rootfs"
}

# kubeadm_load: gives the selected node the images by the names that kubeadm asks for.
kubeadm_load() {
  local image
  runtime_import "$(kubeadm_images)/kubernetes.tar" || return
  for image in $("$kubernetes_bin/kubeadm" config images list --kubernetes-version "v$kubernetes_version"); do
    case $image in
    */coredns:* | */pause:*) ;;
    *) in_node ctr images tag --force localhost/kubernetes:1 "$image" || return ;;
    esac
  done
}

# kubeadm_configuration: writes what `kubeadm init` is told. All else is its default.
kubeadm_configuration() {
  each_node kubeadm_patch
  cat >"$dir/kubeadm/init.yaml" <<X
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration:
  {name: $node, criSocket: "unix://$runtime_socket", ignorePreflightErrors: [all], imagePullPolicy: Never}
localAPIEndpoint: {advertiseAddress: $node_ips}
patches: {directory: $dir/kubeadm/$node}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v$kubernetes_version
networking: {serviceSubnet: $services_nets}
apiServer:
  extraArgs:
  - {name: audit-policy-file, value: /etc/kubernetes/audit.yaml}
  - {name: audit-log-path, value: /var/log/audit/audit.log}
  - {name: audit-log-maxsize, value: "10000"}
  extraVolumes:
  - {name: audit-policy, hostPath: $dir/audit.yaml, mountPath: /etc/kubernetes/audit.yaml, readOnly: true, pathType: File}
  - {name: audit-log, hostPath: $dir/log, mountPath: /var/log/audit, pathType: Directory}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
$(kubelet_of_the_machine)
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
conntrack: {maxPerCore: 0} # the limit is the machine's, not the node's
X
}

# kubeadm_patch: what the kubelet of the selected node is told beside the configuration of all.
kubeadm_patch() {
  mkdir -p "$dir/kubeadm/$node"
  kubelet_of_the_node >"$dir/kubeadm/$node/kubeletconfiguration.yaml"
}

# kubeadm COMMAND...: on the selected node. What preflight looks for are packages, memory and options of the machine.
kubeadm() {
  in_node "$kubernetes_bin/kubeadm" "$@" </dev/null >>"$dir/log/kubeadm.log" 2>&1 || failed kubeadm "kubeadm $1 fails on $node"
}

# kubeadm_make: makes the control plane on node0, and has the other nodes join.
kubeadm_make() {
  local join
  each_node kubeadm_load &>>"$dir/log/images.log" || failed images "cannot import the image of the control plane"
  echo "==> kubeadm init" >&2
  kubeadm init --config "$dir/kubeadm/init.yaml" --skip-phases addon/coredns
  mkdir -p "$dir/pki"
  cp "$dir/node/kubernetes/pki/ca.crt" "$dir/pki/"
  (umask 077 && kubectl --kubeconfig "$dir/node/kubernetes/admin.conf" config view --raw -o json >"$dir/kubeconfig")
  read -ra join < <(in_node "$kubernetes_bin/kubeadm" token create --print-join-command)
  each_node kubeadm_join "${join[@]:1}"
}

# kubeadm_join join ADDRESS OPTIONS...
kubeadm_join() {
  [[ $node != node0 ]] || return 0
  kubeadm "$@" --node-name "$node" --cri-socket "unix://$runtime_socket" --patches "$dir/kubeadm/$node" \
    --ignore-preflight-errors all
}

# kubeadm_kubelet: defines the kubelet of the selected node.
kubeadm_kubelet() { svc_define "kubelet$ending" "$here/kubelet.sh" "$kubernetes_bin/kubelet"; }

# kubeadm_upgrade: upgrades the cluster to the version that use_kubernetes has chosen, without draining a node.
kubeadm_upgrade() {
  each_node kubeadm_load &>>"$dir/log/images.log" || failed images "cannot import the image of the control plane"
  each_node kubeadm_upgrade_node
}

kubeadm_upgrade_node() {
  local verb=node
  [[ $node != node0 ]] || verb=apply
  cat >"$dir/kubeadm/upgrade.yaml" <<X
apiVersion: kubeadm.k8s.io/v1beta4
kind: UpgradeConfiguration
$verb:
  ignorePreflightErrors: [all]
  imagePullPolicy: Never
  patches: {directory: $dir/kubeadm/$node}
X
  if [[ $verb == apply ]]; then
    cat >>"$dir/kubeadm/upgrade.yaml" <<X
  kubernetesVersion: v$kubernetes_version
  forceUpgrade: true # asks nothing
  skipPhases: [addon/coredns]
X
  fi
  kubeadm upgrade "$verb" --config "$dir/kubeadm/upgrade.yaml"
  svc_stop "kubelet$ending"
  kubeadm_kubelet
  svc_start "kubelet$ending"
  ready "kubelet$ending" 120 "$node is not Ready" node_is_new
}
