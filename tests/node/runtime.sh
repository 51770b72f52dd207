# shellcheck shell=bash disable=SC2034,SC2154 # shared with the scripts that source this after lib.sh
# The container runtimes that a node can have, and how they differ; sourced after lib.sh, never run.
#
# $NETCLAIM_RUNTIME chooses the runtime of a new cluster; DIR/runtime has that of an existing one.
#   containerd       2.3, the default
#   containerd-2.2   the minor version before
#   containerd-2.4   the one after
#   crio             CRI-O with its defaults: its sandboxes have no process

# use_runtime NAME: sets runtime, its version and programs, its socket, where its images and containers are, and the
# folder with its module.
use_runtime() {
  runtime=$1
  case $runtime in
  containerd) runtime_module=runtime runtime_bin=${plugins_bin%/cni} ;;
  containerd-2.2 | containerd-2.4) runtime_module=$runtime ;;
  crio) runtime_module=crio ;;
  *) die "no runtime $runtime: set NETCLAIM_RUNTIME to containerd, containerd-2.2, containerd-2.4 or crio" ;;
  esac
  if [[ $runtime == crio ]]; then
    runtime_version=$(module_version crio github.com/cri-o/cri-o)
    runtime_bin=$(artifact crio "$here"/crio/{go.mod,go.sum} -- "$go_flags" "$crio_tags" "$machine")
    runtime_socket=/run/crio/crio.sock runtime_root=/var/lib/containers
  else
    runtime_version=$(module_version "$runtime_module" github.com/containerd/containerd/v2)
    [[ $runtime == containerd ]] || runtime_bin=$(artifact "$runtime" "$here/$runtime_module"/go.{mod,sum} -- \
      "$go_flags" "$containerd_tags" "$machine")
    runtime_socket=/run/containerd/containerd.sock runtime_root=/var/lib/containerd
  fi
}

# build_containerd OUT [MODULE]: builds containerd's programs that are tools of the module.
build_containerd() {
  local containerd=github.com/containerd/containerd/v2 module=${2:-$runtime_module}
  (
    cd "$here/$module" || return
    # shellcheck disable=SC2046 # a list of words
    go build -o "$1/" -tags "$containerd_tags" \
      -ldflags "-s -w -X $containerd/version.Version=v$(module_version "$module" "$containerd")" \
      $(go mod edit -json | jq -r '.Tool[].Path' | grep containerd/containerd)
  )
}

# build_crio OUT: builds CRI-O, its helper that pins namespaces, and its client.
build_crio() {
  local crio=github.com/cri-o/cri-o
  (
    cd "$here/crio" || return
    CGO_ENABLED=1 go build -o "$1/" -tags "$crio_tags" -ldflags "-s -w" "$crio/cmd/crio"
    go build -o "$1/" -ldflags "-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=v$(module_version crio sigs.k8s.io/cri-tools)" \
      sigs.k8s.io/cri-tools/cmd/crictl
    cc -std=c99 -Os -static -s -o "$1/pinns" "$(go list -m -f '{{.Dir}}' "$crio")"/pinns/src/*.c
  )
}

build_runtime() {
  case $runtime in
  crio)
    packages cc:build-essential pkg-config:pkg-config conmon:conmon skopeo:skopeo
    pkg-config --exists libseccomp || packages its-headers:libseccomp-dev
    make_once "$runtime_bin" "building CRI-O $runtime_version (first time: about 4 minutes)" build_crio
    ;;
  # build.sh builds it with the CNI plugins, which every node needs.
  containerd) ;;
  *) make_once "$runtime_bin" "building containerd $runtime_version (first time: about 1 minute)" build_containerd ;;
  esac
}

# runtime_configuration: prints the runtime's configuration file.
runtime_configuration() {
  if [[ $runtime == crio ]]; then
    # clean_shutdown_file: after a power loss CRI-O would check its images, and remove broken ones.
    cat <<X
[crio]
  storage_driver = 'overlay'
  version_file = '/run/crio/version'
  clean_shutdown_file = ''
[crio.runtime]
  cgroup_manager = 'cgroupfs'
  conmon_cgroup = 'pod'
  default_runtime = 'runc'
  cdi_spec_dirs = ['/etc/cdi', '/run/cdi']
  pinns_path = '$runtime_bin/pinns'
[crio.runtime.runtimes.runc]
  runtime_path = '$here/runc-crio.sh'
  monitor_path = '$(command -v conmon)'
[crio.image]
  pause_image = 'localhost/pause:1'
  pause_command = '/pause'
  signature_policy = '$dir/policy.json'
[crio.network]
  network_dir = '/etc/cni/net.d'
  plugin_dirs = ['/opt/cni/bin']
[crio.nri]
  enable_nri = true
  nri_listen = '/run/nri/nri.sock'
X
  else
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower the OOM score, and fails.
    cat <<X
version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ['/etc/cdi', '/run/cdi']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['/opt/cni/bin', '/var/lib/netclaim/bin']
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.netclaim]
    runtime_type = 'io.containerd.runc.v2'
    cni_conf_dir = '/var/lib/netclaim/primary'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.bare]
    runtime_type = 'io.containerd.runc.v2'
    cni_conf_dir = '/etc/cni/bare.d'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
    runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
    BinaryName = '$here/crun.sh'
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = '/run/nri/nri.sock'
X
  fi
}

# runtime_command: prints the words of the runtime's command, one a line.
runtime_command() {
  case $runtime in
  crio)
    echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$dir/policy.json"
    printf '%s\n' "$runtime_bin/crio" --config "$dir/runtime.toml" --config-dir ""
    ;;
  *) printf '%s\n' "$runtime_bin/containerd" --config "$dir/runtime.toml" ;;
  esac
}

# runtime_answers: whether the runtime answers calls.
runtime_answers() {
  case $runtime in
  crio) in_node "$runtime_bin/crictl" -r "unix://$runtime_socket" version ;;
  *) in_node "$runtime_bin/ctr" version ;;
  esac
}

# runtime_import ARCHIVE: loads the images of an archive. The archive is on standard input: the node may not see its path.
runtime_import() {
  local names
  case $runtime in
  crio)
    # Of each image, its name in the archive and in the runtime.
    names=$(tar -xOf "$1" index.json |
      jq -r '.manifests[].annotations | "\(.["org.opencontainers.image.ref.name"]) \(.["io.containerd.image.name"])"')
    # shellcheck disable=SC2016 # a script for another shell
    in_node sh -euc '
      trap "rm -f /run/image.tar" EXIT
      cat >/run/image.tar
      echo "$2" | while read -r from to; do
        skopeo --policy "$1" copy "oci-archive:/run/image.tar:$from" "containers-storage:[overlay@/var/lib/containers/storage+/run/containers/storage]$to" </dev/null
      done
    ' - "$dir/policy.json" "$names" <"$1"
    ;;
  *) in_node ctr images import - <"$1" ;;
  esac
}
