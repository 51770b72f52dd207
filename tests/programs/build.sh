#!/bin/bash
# build.sh NAME: builds a Go program that tests run beside a cluster, and prints its path. The folder NAME pins its modules; what
# is built is the folder's own program, or the tool of its go.mod. The result is kept in $NETCLAIM_CACHE; a second run takes no
# time. Exits with 3 where the Go proxy says that it does not have the modules: some serve no new ones.
set -euo pipefail
programs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../node/lib.sh
. "$programs/../node/lib.sh"
program=${1:-}
[[ $# == 1 && -f $programs/$program/go.mod ]] || die "usage: build.sh $(cd "$programs" && printf '%s|' */ | tr -d / | sed 's/|$//')"
command -v go >/dev/null || die "no Go: see tests/node/build.sh"
export CGO_ENABLED=0 GOFLAGS=$go_flags GOWORK=off
# Go goes on to the modules' own servers where a proxy lacks them, and says what those answered.
proxies=$(go env GOPROXY | sed 's/[,|]direct$//')
cd "$programs/$program"
# Go itself comes from the Go proxy where the program's modules need a newer one.
toolchain=$(sed -n 's/^toolchain //p' go.mod)
[[ -z $toolchain ]] || export GOTOOLCHAIN=$toolchain
package=tool
[[ ! -e main.go ]] || package=.

build() {
  go build -o "$1/$program" -ldflags "-s -w" "$package"
  # Its kinds are in the module, and not in the program.
  [[ $program != certmanager ]] || cp -r "$(go list -m -f '{{.Dir}}' github.com/cert-manager/cert-manager)/deploy/crds" "$1/crds"
}

out=$(artifact "$program" "$programs/$program"/* "$programs/build.sh" -- "$go_flags" "$machine")
log=$cache/log/$program-modules.log
mkdir -p "$cache/log"
# The second question is to proxies only.
ask() { go list -deps "$package" >/dev/null 2>"$log"; }
if ! [[ -e $out/$program ]] && ! ask && ! GOPROXY=$proxies ask; then
  tail -n 3 "$log" >&2
  ! grep -qE ': (404 Not Found|410 Gone|toolchain not available)$' "$log" || exit 3
  die "the modules of $program cannot be read: see $log"
fi
make_once "$out" "building $program (first time: 1 to 5 minutes)" build
echo "$out/$program"
