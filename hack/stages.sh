# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Stages of a long run, for a script that sources this file and sets `stage_logs` to a directory, which is emptied. Each
# stage's output is shown, and kept in a log. When the script ends, whether a stage failed or not, it prints what each
# took, and the slowest packages and specs of all logs and of the reports of Ginkgo (*.json) in that directory.

rm -rf "${stage_logs:?}"
mkdir -p "$stage_logs"
stage_rows=()
stages_began=$SECONDS
trap print_stages EXIT

# stage TITLE COMMAND...: runs a command; when it fails, the script ends with its status.
stage() {
	local title=$1 began=$SECONDS status=0
	local log=$stage_logs/$((${#stage_rows[@]} + 1)).log
	shift
	echo "=== $title (after $((SECONDS - stages_began))s)"
	# A stage that a signal ends keeps this row.
	stage_rows+=("$(printf '%5ds  %-7s  %s' 0 ended "$title")")
	"$@" 2>&1 | tee "$log" || status=$?
	local result=ok
	[ $status = 0 ] || result=failed
	stage_rows[-1]=$(printf '%5ds  %-7s  %s' $((SECONDS - began)) $result "$title")
	[ $status = 0 ] || exit $status
}

print_stages() {
	local status=$?
	printf '=== stages\n'
	[ ${#stage_rows[@]} = 0 ] || printf '%s\n' "${stage_rows[@]}"
	printf '%5ds  in all\n' $((SECONDS - stages_began))
	go run ./hack/slowest "$stage_logs" || echo "the slowest packages and specs could not be listed" >&2
	exit $status
}
