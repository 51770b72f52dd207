#!/bin/bash
# sbom.sh NAME VERSION NOTICES PROGRAM...: prints what an image's programs are made of, as CycloneDX, with licences: the union of the lists
# that cargo-auditable has put into them. Those have build scripts, macros and what other features would need, too: only crates that
# notices.sh has in NOTICES, which are linked, and netclaim's own are left. Needs jq and auditable2cdx.
set -euo pipefail
# shellcheck source=../../tests/node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tests/node/lib.sh"
[[ $# -gt 3 ]] || die "usage: sbom.sh NAME VERSION NOTICES PROGRAM..."
name=$1 version=$2 notices=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# NAME VERSION  LICENCE  REPOSITORY, up to the first text.
awk '/^=+$/ { exit } NF' "$notices" | jq -R 'split("  ") | select(length == 3) | {key: .[0], value: .[1]}' |
  jq -s 'from_entries' >"$work/licenses"
for program; do
  auditable2cdx "$program" >"$work/${program##*/}.json" || die "$program has no list of its dependencies"
done
jq --slurp --sort-keys --arg name "$name" --arg version "$version" --slurpfile licenses "$work/licenses" '
  {bomFormat: .[0].bomFormat, specVersion: .[0].specVersion, version: 1,
    metadata: {component: {type: "container", name: $name, version: $version}},
    components: ([.[] | .metadata.component, .components[]?] | unique_by("\(.name) \(.version)") | map(
      (if .name | startswith("netclaim") then "Apache-2.0" else $licenses[0]["\(.name) \(.version)"] end) as $license |
      select($license) | {type, name, version, purl: (.purl | sub("&download_url=redacted$"; "")), licenses: [{expression: $license}]} | with_entries(select(.value != null))))}' \
  "$work"/*.json
