#!/bin/bash
# chart.sh OUT REGISTRY VERSION [DOCS]: packs the chart of a release into the folder OUT, and writes what it renders for kubectl apply -f,
# with REGISTRY/netclaim-agent:VERSION and REGISTRY/netclaim-controller:VERSION as the images, and DOCS as the value docsURL. Needs Go,
# which builds Helm where it is missing.
set -euo pipefail
# shellcheck source=../../tests/node/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tests/node/lib.sh"
[[ $# == 3 || $# == 4 ]] || die "usage: chart.sh OUT REGISTRY VERSION [DOCS]"
out=$(realpath "$1") registry=$2 version=$3 docs=${4:-}
cd "$root"
chart=deploy/helm/netclaim
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# value FILE KEY: the value of a line of a YAML file.
value() { awk -v key="$2:" '$1 == key { print $2; exit }' "$1"; }

for key in version appVersion; do
  [[ $(value "$chart/Chart.yaml" "$key") == "$version" ]] || die "$chart/Chart.yaml: $key is not that of Cargo.toml, $version"
done
helm=$(tests/programs/build.sh helm)
cp -r "$chart" "$work/netclaim"
sed -i -e "0,/^  registry: \"\"/s||  registry: $registry|" \
  -e "0,/^  # -- Where netclaim's images are/s|It has to be set.*|By default where those of the release are.|" \
  ${docs:+-e "s|^docsURL: .*|docsURL: $docs|"} "$work/netclaim/values.yaml"
# Where the repository is: what is published elsewhere, such as by a fork, leads there.
[[ $docs != */blob/* ]] || sed -i "s|https://github.com/netclaim/netclaim$|${docs%/blob/*}|; s|\[https://github.com/netclaim/netclaim\]|[${docs%/blob/*}]|" "$work/netclaim/Chart.yaml"
"$helm" package "$work/netclaim" --destination "$out" >/dev/null
{
  cat deploy/manifests/namespace.yaml
  "$helm" template netclaim "$work/netclaim" --namespace netclaim-system --kube-version 1.37.0
} >"$out/netclaim.yaml"
for image in netclaim-{agent,controller}; do
  grep -q "image: $registry/$image:$version$" "$out/netclaim.yaml" ||
    die "netclaim.yaml does not name the image $registry/$image:$version"
done
