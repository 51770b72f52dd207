#!/bin/bash
# arm64.sh: builds the images for arm64, and starts each of their programs from them: on another machine by QEMU's user mode. QEMU
# emulates the processor, and the kernel is this machine's. It knows QEMU as the interpreter of arm64's programs in a user namespace
# alone, which needs Linux 6.7, so nothing of it is left. What an arm64 machine's kernel does with the programs is for `make test-release`
# there. Installs what is missing, as root on Debian. $NETCLAIM_PROFILE is Cargo's profile (quick).
set -euo pipefail
# shellcheck source=node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/node/lib.sh"
cd "$root"
export NETCLAIM_PROFILE=${NETCLAIM_PROFILE:-quick} CARGO_INCREMENTAL=0
target=aarch64-unknown-linux-gnu

skip() {
  echo "SKIPPED CASE: the images for arm64: $*"
  exit 0
}

# emulate: has the kernel run programs for arm64 by QEMU, in this user namespace.
emulate() {
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  # The header of an ELF file for AArch64: an executable (2) or one that relocates itself (3). F: QEMU is opened now, before any chroot.
  # shellcheck disable=SC2028 # the kernel reads the escapes
  echo ':netclaim-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$(command -v qemu-aarch64-static):F" \
    >/proc/sys/fs/binfmt_misc/register
}

# within COMMAND...: runs this script's COMMAND as the root of new namespaces, in which nothing outlives it.
within() {
  unshare --user --map-root-user --mount --net --pid --fork --kill-child --mount-proc "$root/tests/arm64.sh" --within "$@"
}

# enter COMMAND...: becomes a command with the image as its root and the image's environment.
enter() { exec env -i PATH=/usr/bin "${environment[@]}" "$(command -v chroot)" "$image" "$@"; }

# answers TEXT COMMAND...: fails unless the command prints TEXT.
answers() {
  local text=$1 said
  shift
  said=$(enter "$@" 2>&1) || true
  [[ $said == *"$text"* ]] || die "$* does not say '$text' but: $said"
  echo "     ${*##*/}: $text"
}

# says TEXT: whether the program that has been started said it.
says() { grep -qF -- "$1" "$log"; }

# fails REASON: ends the script, with what the program said.
fails() {
  sed 's/^/    | /' "$log" | cut -c1-300 | head -n 30 >&2
  die "$*"
}

# serves TEXT PROGRAM ARGUMENT...: starts a program that runs until it is ended, waits until it says TEXT, and ends it.
serves() {
  local text=$1 status=0 pid
  shift
  enter "$@" <&0 >"$log" 2>&1 &
  pid=$!
  # shellcheck disable=SC2317 # by `wait_for`
  said_or_ended() { says "$text" || ! kill -0 "$pid"; }
  wait_for 60 said_or_ended || fails "$1 does not say '$text' within 60 s"
  kill -TERM "$pid" 2>/dev/null || true
  wait "$pid" || status=$?
  says "$text" || return 1
  ((status == 0)) || fails "$1 ended with $status when it was told to stop"
  ! says panicked || fails "$1 has panicked"
  echo "     ${1##*/}: $text"
}

# checks IMAGES: starts the programs of the images in the folder IMAGES.
checks() {
  local images=$1 version=$2 plugin retry
  log=$images/log environment=()
  [[ $machine == aarch64 ]] || emulate

  image=$images/agent
  mount --bind /proc "$image/proc"
  answers "netclaim-kubelet-plugin $version" /usr/bin/netclaim-kubelet-plugin --version
  answers 'The netclaim node agent' /usr/bin/netclaim-parent --help
  answers 'usage: netclaim-hook GATE-SOCKET MARKER-DIR' /usr/bin/netclaim-hook
  for plugin in netclaim-{bandwidth,link,route}; do
    environment=(CNI_COMMAND=VERSION)
    answers '"supportedVersions":[' "/usr/libexec/cni/$plugin" <<<'{"cniVersion":"1.1.0"}'
  done
  answers '"supportedVersions":[' /usr/bin/netclaim-primary <<<'{"cniVersion":"1.1.0"}'
  environment=()
  # As far as an agent can go without an API server.
  retry='cannot watch ClaimNetworks, retrying'
  if ! serves "$retry" /usr/bin/netclaim-parent --node-name arm64 --kubeconfig /tmp/kubeconfig; then
    says 'cannot adopt the processes that plugins leave running: EINVAL' || fails "netclaim-parent has ended"
    echo "SKIPPED CASE: netclaim-parent starts the agent: this QEMU has no subreapers (PR_SET_CHILD_SUBREAPER)"
  fi
  # As its parent starts it: with the number of earlier starts, and the file by whose lock agents take turns.
  environment=(NETCLAIM_STARTS=0)
  serves "$retry" /usr/bin/netclaim-kubelet-plugin --node-name arm64 --kubeconfig /tmp/kubeconfig <>"$images/lock" ||
    fails 'the agent has ended'
  environment=()
  says 'netclaim agent started' || fails 'the agent has not started'
  cmp "$image/usr/bin/netclaim-hook" "$image/var/lib/netclaim/bin/netclaim-hook" || die 'the agent has not installed its hook'

  image=$images/controller
  mount --bind /proc "$image/proc"
  answers "netclaim-controller $version" /usr/bin/netclaim-controller --version
  answers "netclaimctl $version" /usr/bin/netclaimctl --version
  answers '1 fine' /usr/bin/netclaimctl validate --filename /tmp/examples
  answers 'spec.cni.plugins[0].mode' /usr/bin/netclaimctl validate --filename /tmp/wrong.yaml
  serves 'cannot use lease' /usr/bin/netclaim-controller --kubeconfig /tmp/kubeconfig || fails 'the controller has ended'

  image=$images/plugins environment=(CNI_COMMAND=VERSION)
  for plugin in bridge host-local ipvlan macvlan vlan; do
    answers '"supportedVersions":[' "/$plugin" <<<'{"cniVersion":"1.1.0"}'
  done
}

if [[ ${1:-} == --within ]]; then
  shift
  "$@"
  exit
fi
(($# == 0)) || die "usage: arm64.sh"
begin=$SECONDS
if [[ $machine != aarch64 ]]; then
  mkdir -p "$cache/log"
  # As deploy/release/build.sh: the C++ compiler brings the C library of the other architecture.
  (packages aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static) ||
    skip "the compiler or QEMU cannot be installed, as said above"
  ! command -v rustup >/dev/null || rustup target add "$target" 2>"$cache/log/arm64-target.log" ||
    skip "rustup cannot install $target: $(tail -n 1 "$cache/log/arm64-target.log")"
  within emulate || skip "this kernel has no binfmt_misc of user namespaces, as said above (Linux 6.7)"
fi
packages jq:jq openssl:openssl unshare:util-linux
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

step "building netclaim for arm64 with the profile $NETCLAIM_PROFILE (the first time about 10 minutes on two cores)" \
  "$cache/log/arm64.log" deploy/image/binaries.sh "$work/built" arm64
pack() {
  (
    cd deploy/image/archive
    CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go run . -out "$work/netclaim.tar" \
      "localhost/netclaim-agent:dev=arm64=$work/built/agent" "localhost/netclaim-controller:dev=arm64=$work/built/controller"
  ) && deploy/plugins/build.sh "$work/plugins.tar" localhost/cni-plugins:dev arm64
}
step "packing the images for arm64" "$cache/log/arm64-images.log" pack

# object ARCHIVE DIGEST: prints a file of an image archive.
object() { tar -xOf "$1" "blobs/${2/://}"; }

# unpack ARCHIVE NAME FOLDER: fills FOLDER with the files of an image for arm64.
unpack() {
  local manifest layer
  manifest=$(tar -xOf "$1" index.json | jq -er --arg name "$2" '.manifests[] |
    select(.annotations["org.opencontainers.image.ref.name"] == $name or .annotations["io.containerd.image.name"] == $name).digest')
  # An image of one architecture, or a list of several.
  [[ $(object "$1" "$manifest" | jq 'has("manifests")') == false ]] ||
    manifest=$(object "$1" "$manifest" | jq -er '.manifests[] | select(.platform.architecture == "arm64").digest')
  [[ $(object "$1" "$(object "$1" "$manifest" | jq -er .config.digest)" | jq -r .architecture) == arm64 ]] ||
    die "the image $2 is not for arm64"
  mkdir -p "$3"/{proc,tmp,run}
  for layer in $(object "$1" "$manifest" | jq -er '.layers[].digest'); do
    object "$1" "$layer" | tar -xzC "$3"
  done
  local program
  while IFS= read -r program; do
    # e_machine of its ELF header. Another machine's program would start, too.
    [[ $(od -An -tx1 -j18 -N2 "$program") == ' b7 00' ]] || die "$program of the image $2 is not for arm64"
  done < <(find "$3" -type f -perm -u+x)
}
unpack "$work/netclaim.tar" localhost/netclaim-agent:dev "$work/images/agent"
unpack "$work/netclaim.tar" localhost/netclaim-controller:dev "$work/images/controller"
unpack "$work/plugins.tar" localhost/cni-plugins:dev "$work/images/plugins"

# No API server is there: the network namespace is a new one. As in a pod, the only certificate is the cluster's.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=test -keyout /dev/null -out "$work/ca.crt" 2>/dev/null
jq -n --rawfile ca "$work/ca.crt" '{apiVersion: "v1", kind: "Config", "current-context": "a", users: [{name: "a", user: {}}],
  clusters: [{name: "a", cluster: {server: "https://127.0.0.1:1", "certificate-authority-data": ($ca | @base64)}}],
  contexts: [{name: "a", context: {cluster: "a", user: "a"}}]}' |
  tee "$work/images/agent/tmp/kubeconfig" >"$work/images/controller/tmp/kubeconfig"
cp -r deploy/examples "$work/images/controller/tmp/examples"
sed 's/mode: bridge$/mode: bridged/' deploy/examples/network.yaml >"$work/images/controller/tmp/wrong.yaml"
version=$(cargo metadata --no-deps --format-version 1 --locked | jq -er '.packages[] | select(.name == "netclaim-cli").version')
echo "==> starting the programs$([[ $machine == aarch64 ]] || echo ', emulated')" >&2
within checks "$work/images" "$version"
echo "test-arm64: ok: the images for arm64 start, after $(elapsed $((SECONDS - begin)))"
