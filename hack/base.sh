# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Sourced. base prints the commit from which the changes count: BASE, or the merge base with origin/main, or the
# previous commit if that is HEAD or if there is no such branch.

base() {
	local found
	if [ -n "${BASE:-}" ]; then
		git rev-parse --verify "$BASE^{commit}"
		return
	fi
	found=$(git merge-base HEAD origin/main 2>/dev/null || true)
	if [ -z "$found" ] || [ "$found" = "$(git rev-parse HEAD)" ]; then
		found=$(git rev-parse --verify --quiet HEAD^ || true)
	fi
	if [ -z "$found" ]; then
		echo "no commit before HEAD is in this clone: only what is not committed counts as changed" >&2
		found=HEAD
	fi
	echo "$found"
}
