#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs golangci-lint on the modules in the given directories. Its cache is keyed by absolute paths. As root, the clone
# is therefore mounted at one path, in a mount namespace of its own, so that a new clone is linted with the cache of
# another one.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
linter=$(hack/tools/build.sh --path golangci-lint)/golangci-lint
fixed=${VIREO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vireo}/lint
if [ "${1:-}" != --mounted ] && [ "$(id -u)" = 0 ] && unshare --mount true 2>/dev/null; then
	mkdir -p "$fixed"
	exec unshare --mount bash -euc 'mount --bind . "$0" && cd "$0" && exec hack/lint.sh --mounted "$@"' "$fixed" "$@"
fi
[ "${1:-}" != --mounted ] || shift

failed=0
for module in "$@"; do
	(cd "$module" && "$linter" run --allow-parallel-runners --concurrency 2 ./...) || failed=1
done
exit $failed
