#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Prints Ginkgo's label filter for all specs but the extended ones, and the third of those that the hash of the current commit chooses.
# Prints nothing, which selects all specs, if there is no commit. With EXTENDED=0 it chooses no extended specs. With --number it prints
# the number of the third only.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
hash=$(git rev-parse --short=7 HEAD 2>/dev/null) || exit 0
third=$((0x$hash % 3 + 1))
if [ "${1:-}" = --number ]; then
	echo "$third"
elif [ "${EXTENDED:-}" = 0 ]; then
	echo '!extended'
else
	echo "!extended || extended-$third"
fi
