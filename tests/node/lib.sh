# shellcheck shell=bash
# Functions and variables of all scripts; sourced, never run.
# shellcheck disable=SC2034 # the scripts use them

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # a root shell may lack them
cache=${NETCLAIM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/netclaim}

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# wait_for SECONDS COMMAND...: waits until the command succeeds; fails after SECONDS.
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@" &>/dev/null; do
    ((SECONDS < end)) || return 1
    sleep 0.1
  done
}

# elapsed SECONDS: 75 -> 1m15s
elapsed() {
  if (($1 < 60)); then echo "$1s"; else printf '%dm%02ds\n' $(($1 / 60)) $(($1 % 60)); fi
}

# step TEXT LOG COMMAND...: runs a long command with its output in LOG, and prints the time every 30 s. Prints the end of
# LOG if the command fails.
step() {
  local text=$1 log=$2 begin=$SECONDS pid status=0 next=30
  shift 2
  echo "==> $text" >&2
  mkdir -p "$(dirname "$log")"
  # Its own process group, so that the command's children end with this script.
  set -m
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  set +m
  # shellcheck disable=SC2064 # this pid
  trap "kill -TERM -- -$pid 2>/dev/null; exit 130" INT TERM
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if ((SECONDS - begin >= next)); then
      echo "    ... $(elapsed $((SECONDS - begin)))" >&2
      next=$((next + 30))
    fi
  done
  wait "$pid" || status=$?
  trap - INT TERM
  if ((status != 0)); then
    echo "    FAILED after $(elapsed $((SECONDS - begin))), log: $log" >&2
    tail -n 20 "$log" | sed 's/^/    | /' >&2
    return "$status"
  fi
  echo "    done in $(elapsed $((SECONDS - begin)))" >&2
}

# packages PROGRAM:PACKAGE...: installs the packages whose programs are missing, with apt-get.
packages() {
  local item missing=()
  for item; do
    command -v "${item%%:*}" >/dev/null || missing+=("${item#*:}")
  done
  ((${#missing[@]} != 0)) || return 0
  command -v apt-get >/dev/null || die "missing packages: ${missing[*]} (this is not Debian: please install them)"
  ((EUID == 0)) || die "missing packages: as root, apt-get install ${missing[*]}"
  step "installing ${missing[*]}" "$cache/log/packages.log" bash -ec '
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -qy --no-install-recommends "$@"' - "${missing[@]}"
}

# test_program PACKAGE TEST: builds a crate's test program, and prints its path.
test_program() {
  cargo test --quiet --locked --no-run --message-format=json --package "$1" --test "$2" |
    jq -r 'select(.reason == "compiler-artifact" and .executable != null and .target.kind == ["test"]).executable'
}

# no_machine TESTS: ends a script whose virtual machine cannot be started.
no_machine() {
  [[ ${NETCLAIM_SKIP_QEMU:-} == 1 ]] ||
    die "this machine cannot run a virtual machine, as said above: NETCLAIM_SKIP_QEMU=1 skips these tests"
  echo "SKIPPED CASE: $1: NETCLAIM_SKIP_QEMU is set"
  exit 0
}

# artifact NAME FILES... -- WORDS...: the folder of a build with these inputs. Its name has a hash of the files' content and
# of the words: other inputs have another folder, and a folder that exists is complete.
artifact() {
  local name=$1 files=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  echo "$cache/$name-$({ sha256sum "${files[@]}" | cut -d' ' -f1; echo "$*"; } | sha256sum | cut -c1-12)"
}

# make_once DIR TEXT FUNCTION: calls FUNCTION with a new folder, and renames it to DIR. Of several scripts that start
# together, one builds and the others wait.
make_once() {
  local dir=$1 text=$2 function=$3 name
  [[ ! -d $dir ]] || return 0
  name=$(basename "$dir")
  mkdir -p "$cache"
  exec {lock}>"$cache/$name.lock"
  flock "$lock"
  if [[ ! -d $dir ]]; then
    rm -rf "$dir.new"
    mkdir -p "$dir.new"
    step "$text" "$cache/log/$name.log" "$function" "$dir.new"
    mv "$dir.new" "$dir"
  fi
  exec {lock}>&-
}

# module_version FOLDER MODULE [FILE]: the version that FOLDER/go.mod, or FILE, requires, without the v.
module_version() {
  awk -v m="$2" '$1 == "replace" { exit } { for (i = 1; i < NF; i++) if ($i == m) { print substr($(i + 1), 2); exit } }' \
    "$here/$1/${3:-go.mod}"
}
plugins_version=$(module_version runtime github.com/containernetworking/plugins)
# Builds contain no paths of this machine, use modules as committed, and make no DWARF, which the linker would drop again: it is a
# sixth of the compiler's time.
go_flags="-trimpath -buildvcs=false -mod=readonly -gcflags=all=-dwarf=false"
containerd_tags=no_btrfs,no_devmapper,no_zfs
crio_tags=containers_image_openpgp,containers_image_ostree_stub,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper,seccomp

machine=$(uname -m)
plugins_bin=$(artifact runtime "$here"/runtime/{go.mod,go.sum} -- "$go_flags" "$containerd_tags" "$machine")/cni
images=$(artifact images "$here/pause/main.go" "$here/build.sh" "$root"/deploy/image/archive/main.go -- "$machine")

# use_kubernetes NAME: sets kubernetes, its version and module file, and the folder with its programs. NAME is `newest`,
# the default, or a minor version with a module file in kubernetes/. $NETCLAIM_KUBERNETES chooses the version of a new
# cluster; DIR/kubernetes has that of an existing one.
use_kubernetes() {
  local name=kubernetes
  kubernetes=$1 kubernetes_module=go
  if [[ $kubernetes != newest ]]; then
    kubernetes_module=$kubernetes name=kubernetes-$kubernetes
    [[ -e $here/kubernetes/$kubernetes.mod ]] ||
      die "no Kubernetes $kubernetes: set NETCLAIM_KUBERNETES to newest or one of $(cd "$here/kubernetes" && echo [0-9]*.mod | sed 's/\.mod//g')"
  fi
  kubernetes_version=$(module_version kubernetes k8s.io/kubernetes "$kubernetes_module.mod")
  kubernetes_bin=$(artifact "$name" "$here"/kubernetes/{"$kubernetes_module".mod,"$kubernetes_module".sum,main.go} -- \
    "$go_flags" "$machine")
}
