#!/bin/sh
# Builds the page's script and style into the package; --check only compares with what is committed.
# Needs node and `npm ci` once; users of gradwatch need neither.
set -eu
cd "$(dirname "$0")"
target=../src/gradwatch/views/page/static
out=$target
check=
if [ "${1:-}" = --check ]; then
  check=yes
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
./node_modules/.bin/esbuild src/main.js --bundle --minify --format=iife --target=es2022 \
  --charset=ascii --legal-comments=none --log-level=warning --outfile="$out/page.js"
./node_modules/.bin/esbuild src/page.css --bundle --minify --log-level=warning --outfile="$out/page.css"
cp LICENSES.txt "$out/LICENSES.txt"
if [ -n "$check" ]; then
  for file in page.js page.css LICENSES.txt; do
    cmp "$out/$file" "$target/$file" || { echo "$file is not fresh: run frontend/build.sh" >&2; exit 1; }
  done
fi
