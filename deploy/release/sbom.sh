#!/bin/bash
# sbom.sh NAME VERSION PROGRAM...: prints what an image's programs are made of, as CycloneDX: the union of the lists that cargo-auditable
# has put into them, and the licences that the crates state. Needs Rust, jq and auditable2cdx.
set -euo pipefail
# shellcheck source=../../tests/node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tests/node/lib.sh"
[[ $# -gt 2 ]] || die "usage: sbom.sh NAME VERSION PROGRAM..."
name=$1 version=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$root" && cargo metadata --locked --format-version 1) |
  jq '[.packages[] | {key: "\(.name) \(.version)", value: .license}] | from_entries' >"$work/licenses"
for program; do
  auditable2cdx "$program" >"$work/${program##*/}.json" || die "$program has no list of its dependencies"
done
jq --slurp --sort-keys --arg name "$name" --arg version "$version" --slurpfile licenses "$work/licenses" '
  . as $programs | .[0] | {bomFormat, specVersion, version: 1,
    metadata: {component: {type: "container", name: $name, version: $version}},
    components: ([$programs[] | .metadata.component, .components[]?] | map(select(. != null)) | unique_by("\(.name) \(.version)") | map(
      $licenses[0]["\(.name) \(.version)"] as $license |
      {type: .type, name, version, purl, "bom-ref": ."bom-ref"} + if $license then {licenses: [{expression: $license}]} else {} end
      | with_entries(select(.value != null))))}' "$work"/*.json
