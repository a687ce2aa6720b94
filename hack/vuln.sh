#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Looks for known vulnerabilities in what the product's code calls. GOVULNDB names another database than Go's own.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${1:?usage: vuln.sh PROGRAM}
database=${GOVULNDB:-https://vuln.go.dev}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
"$program" -db "$database" ./... 2>&1 | tee "$log" || status=$?
[ $status = 0 ] || {
	# 3 means that it found some.
	if [ $status != 3 ] && grep -q 'fetching vulnerabilities' "$log"; then
		echo "vuln: nothing was checked: the database $database cannot be reached; GOVULNDB=URL names another" >&2
	fi
	exit $status
}
