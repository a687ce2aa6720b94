#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Installs the Debian packages that building, testing and the local cluster need. Runs apt only if one is missing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t wanted < <(sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$here/packages.txt" "$here"/images/packages.txt "$here"/cluster/packages.txt | sort -u)
missing=()
for package in "${wanted[@]}"; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
command -v apt-get >/dev/null || {
	echo "deps: this system has no apt-get: install its packages that correspond to: ${missing[*]}" >&2
	exit 1
}
echo "deps: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { "${sudo[@]}" apt-get update && "${sudo[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
	tail -20 "$log" >&2
	echo "deps: apt-get could not install: ${missing[*]}" >&2
	exit 1
fi
