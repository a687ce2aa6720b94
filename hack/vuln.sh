#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Checks for known vulnerabilities in functions that the product calls. GOVULNDB is the URL of another database than
# Go's.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${1:?usage: vuln.sh PROGRAM}
database=${GOVULNDB:-https://vuln.go.dev}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
"$program" -db "$database" ./... 2>&1 | tee "$log" || status=$?
[ $status = 0 ] || {
	# 3 means that there are vulnerabilities.
	if [ $status != 3 ] && grep -q 'fetching vulnerabilities' "$log"; then
		echo "vuln: nothing was checked: the database $database cannot be reached; GOVULNDB=URL names another" >&2
	fi
	exit $status
}
