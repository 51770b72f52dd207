#!/bin/bash
# notices.sh OUT: writes the licences of all crates that netclaim's programs are made of: their names, and the texts that they come with.
# A text that several crates have is there once. A crate that is published without a text gets the one of its licence, Apache-2.0 or MIT;
# another one fails. Needs Rust and jq.
set -euo pipefail
# shellcheck source=../../tests/node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tests/node/lib.sh"
[[ $# == 1 ]] || die "usage: notices.sh OUT"
out=$(realpath -m "$1")
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# mit OWNERS: prints the licence.
mit() {
  cat <<X
Copyright (c) $1

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish,
distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to
the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR
ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH
THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
X
}

# What is linked into the programs of deploy/image/binaries.sh: no build scripts, no procedural macros.
programs=(netclaim-kubelet-plugin netclaim-hook netclaim-primary netclaim-controller netclaim-cli netclaim-bandwidth netclaim-link netclaim-route)
for target in {x86_64,aarch64}-unknown-linux-gnu; do
  cargo tree --locked --quiet --prefix none --no-dedupe --edges normal,no-proc-macro --target "$target" --format '{p}' \
    "${programs[@]/#/--package=}" | awk 'NF { print $1 " " substr($2, 2) }' >>"$work/all"
  # Without the crates of other systems, which would be downloaded.
  cargo metadata --locked --format-version 1 --filter-platform "$target" | jq -r '.packages[] |
    [.name, .version, .license // "none", .repository // "none", (.authors | join(", ") | if . == "" then "-" else . end), (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' >>"$work/known"
done
sort -u "$work/all" | grep -v '^netclaim' >"$work/crates"
sort -u "$work/known" |
  awk -F'\t' 'NR == FNR { is_linked[$1] = 1; next } is_linked[$1 " " $2]' "$work/crates" - >"$work/packages"

mkdir "$work/texts" "$work/users"
# add FILE: notes that this crate has the text.
add() {
  local sum
  sum=$(sed 's/[[:space:]]*$//' "$1" | sha256sum | cut -d' ' -f1)
  [[ -e $work/texts/$sum ]] || cp "$1" "$work/texts/$sum"
  echo "$name $version ($license)" >>"$work/users/$sum"
}
failed=
while IFS=$'\t' read -r name version license repository authors folder; do
  mapfile -t files < <(find "$folder" -maxdepth 1 -type f \
    \( -iname 'LICEN[CS]E*' -o -iname 'COPYING*' -o -iname 'NOTICE*' -o -iname 'UNLICENSE*' \) | sort)
  if ((${#files[@]} == 0)); then
    case $license in
    *Apache-2.0*) files=(LICENSE) ;;
    *MIT*)
      mit "${authors/#-/the authors of $repository}" >"$work/mit"
      files=("$work/mit")
      ;;
    *)
      echo "notices.sh: $name $version ($license, $repository) has no text" >&2
      failed=yes
      ;;
    esac
  fi
  for file in "${files[@]}"; do
    add "$file"
  done
done <"$work/packages"
[[ -z $failed ]] || die "find out what their licences ask for"
{
  printf "netclaim's programs are made of these crates, too:\n\n"
  awk -F'\t' '{ printf "%s %s  %s  %s\n", $1, $2, $3, $4 }' "$work/packages"
  for users in "$work"/users/*; do
    printf '\n%080d\n' 0 | tr 0 =
    cat "$users"
    printf '%080d\n\n' 0 | tr 0 -
    cat "$work/texts/${users##*/}"
  done
} >"$out"
