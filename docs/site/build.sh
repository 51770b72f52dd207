#!/bin/bash
# build.sh MDBOOK OUT [FILES]: builds docs/ as a site in the folder OUT. FILES is where the repository's files can be read, such as
# https://HOST/OWNER/netclaim/blob/v0.1.0: links to files outside of docs/ go there. By default, these are the files beside docs/.
set -euo pipefail
[[ $# == 2 || $# == 3 ]] || { echo "usage: build.sh MDBOOK OUT [FILES]" >&2; exit 2; }
docs=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mdbook=$1 out=$(realpath -m "$2") files=${3:-file://${docs%/docs}}
book=$(mktemp -d)
trap 'rm -rf "$book"' EXIT

mkdir "$book/src"
cp "$docs/site/book.toml" "$book"
(cd "$docs" && find . -path ./site -prune -o -type f -print0 | xargs -0 cp --parents -t "$book/src")
cd "$book/src"
sed -i -E "s|\]\(\.\./\.\./|](${files}/|g" ./*/*.md
sed -i -E "s|\]\(\.\./|](${files}/|g" ./*.md
# mdBook makes index.html of README.md, but does not change links to it. SUMMARY.md names the pages as they are.
mapfile -t pages < <(find . -name '*.md' ! -path ./SUMMARY.md)
sed -i -E 's|\]\(((\.\./)*([a-z]+/)?)README\.md|](\1index.md|g' "${pages[@]}"
rm -rf "$out"
"$mdbook" build "$book" --dest-dir "$out"
echo "$out/index.html"
