#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs the tests of the packages below internal and cmd that differ from BASE with Go's race detector, one package at a
# time: first one that the hash of the commit chooses, so that each has its turn, then those with the fewest tests.
# Uncommitted changes count. hack/base.sh says what BASE defaults to. After BUDGET seconds it starts no further package,
# and prints those left out; below 60 none is chosen. A package is stopped after three times that. --list prints the
# packages in their order and runs nothing.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/base.sh
began=$SECONDS

# packages: maps changed files to packages: the nearest directory above with Go files, since test data is in
# subdirectories.
packages() {
	local dir
	{
		git diff --name-only -z "$since" -- internal cmd
		git ls-files --others --exclude-standard -z -- internal cmd
	} | while IFS= read -r -d '' file; do
		dir=$(dirname "$file")
		while [ "$dir" != . ] && ! compgen -G "$dir/*.go" >/dev/null; do
			dir=$(dirname "$dir")
		done
		[ "$dir" = . ] || ! compgen -G "$dir/*_test.go" >/dev/null || echo "./$dir"
	done | sort -u
}

since=$(base)
budget=${BUDGET:-300}
mapfile -t changed < <(packages)
chosen=
if [ ${#changed[@]} -gt 0 ] && [ "$budget" -ge 60 ]; then
	chosen=${changed[$((0x$(git rev-parse --short=7 HEAD) % ${#changed[@]}))]}
fi
mapfile -t ordered < <(for package in "${changed[@]}"; do
	[ "$package" = "$chosen" ] && echo "0 $package" || echo "$(cat "$package"/*_test.go | wc -c) $package"
done | sort -n | cut -d' ' -f2)
if [ "${1:-}" = --list ]; then
	[ ${#ordered[@]} = 0 ] || printf '%s\n' "${ordered[@]}"
	exit 0
fi
failed=0
left=()
for package in "${ordered[@]}"; do
	if [ $((SECONDS - began)) -ge "$budget" ]; then
		left+=("$package")
		continue
	fi
	# A race ends the test at once, so a package that does not come to its end has had none until then.
	status=0
	CGO_ENABLED=1 GORACE=halt_on_error=1 timeout "$((3 * budget))" go test -race -timeout 30m "$package" || status=$?
	case $status in
	0) ;;
	124) echo "race: $package was stopped after $((3 * budget)) s; it had no race until then" ;;
	*) failed=1 ;;
	esac
done
[ ${#left[@]} = 0 ] || printf 'race: no time for %s: run make test-race\n' "${left[*]}"
echo "race: $((${#changed[@]} - ${#left[@]})) packages of ${#changed[@]} that differ from ${since:0:12}"
exit $failed
