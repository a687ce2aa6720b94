#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Fails if generated files are stale, go.mod is not tidy, code is not formatted, a nolint names a linter that is not
# enabled, which nolintlint does not report, or the product uses a word that the glossary refuses. It works on copies
# and does not change the tree.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 tar -cf - --ignore-failed-read 2>/dev/null | tar -C "$copy" -xf -
failed=0
check() {
	local title=$1
	shift
	if ! (cd "$copy" && "$@") >"$copy/.verify.log" 2>&1; then
		tail -20 "$copy/.verify.log" >&2
		echo "verify: $title could not be checked" >&2
		failed=1
	fi
	rm -f "$copy/.verify.log"
}
check "generated files" make generate manifests
check "go.mod" go mod tidy
check "test/wirecompat/go.mod" env -C test/wirecompat go mod tidy
check "test/clientcompat/go.mod" env -C test/clientcompat go mod tidy
check "test/chart/go.mod" env -C test/chart go mod tidy
check "hack/cluster/csi/go.mod" env -C hack/cluster/csi go mod tidy
unformatted=$(cd "$copy" && gofmt -l api cmd internal test hack)
if [ -n "$unformatted" ]; then
	printf 'verify: not formatted (run make fmt):\n%s\n' "$unformatted" >&2
	failed=1
fi
mapfile -t linters < <(sed -n '/^  enable:$/,/^  settings:$/s/^    - //p' .golangci.yml)
idle=$(cd "$copy" && { grep -rnoP --include='*.go' '// ?nolint:\K[\w,]+' . || true; } | awk -F: -v linters=" ${linters[*]} " '{
	n = split($3, named, ",")
	for (i = 1; i <= n; i++) if (!index(linters, " " named[i] " ")) printf "  %s:%s: %s\n", $1, $2, named[i]
}')
if [ -n "$idle" ]; then
	printf 'verify: nolint for a linter that .golangci.yml does not enable:\n%s\n' "$idle" >&2
	failed=1
fi
if ! unwanted=$(go run ./hack/words 2>&1); then
	printf 'verify: words that docs/glossary.md does not want:\n%s\n' "$unwanted" >&2
	failed=1
fi
while IFS= read -r -d '' file; do
	[ -f "$file" ] || continue
	if ! cmp -s "$file" "$copy/$file"; then
		echo "verify: $file is stale: run make generate manifests, and go mod tidy" >&2
		diff -u "$file" "$copy/$file" | head -20 >&2 || true
		failed=1
	fi
done < <(git ls-files -z --cached --others --exclude-standard)
[ $failed = 0 ] && echo "verify: everything is up to date"
exit $failed
