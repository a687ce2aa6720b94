#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Prints Ginkgo's label filter for all specs but the extended ones, the third of those that the hash of the current
# commit chooses, and those of what has changed: the specs in pool_test.go if the path of a changed file contains
# "pool". A change of more than four such subjects concerns too much: the thirds of later commits will do. Prints
# nothing, which selects all specs, if there is no commit. With EXTENDED=0 it chooses no extended specs. With --number
# it prints the number of the third only.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. hack/base.sh

# changed: prints the labels of the extended specs of what has changed, or nothing if that is too much.
changed() {
	local files file subject labels=()
	files=$(git diff --name-only "$(base)" -- internal cmd api config test/e2e test/integration)
	for file in $(grep -l 'extended(' test/e2e/*_test.go test/integration/*_test.go); do
		subject=$(basename "$file" _test.go)
		if [ "$subject" != suite ] && grep -q "$subject" <<<"$files"; then
			labels+=("of-$subject")
		fi
	done
	mapfile -t labels < <(printf '%s\n' "${labels[@]}" | sort -u)
	if [ ${#labels[@]} -gt 4 ]; then
		echo "The change concerns ${#labels[@]} subjects of extended specs: only a third of those runs." >&2
	elif [ -n "${labels[0]}" ]; then
		printf ' || %s' "${labels[@]}"
	fi
}

hash=$(git rev-parse --short=7 HEAD 2>/dev/null) || exit 0
third=$((0x$hash % 3 + 1))
if [ "${1:-}" = --number ]; then
	echo "$third"
elif [ "${EXTENDED:-}" = 0 ]; then
	echo '!extended'
else
	echo "!extended || extended-$third$(changed)"
fi
