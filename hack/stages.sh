# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Stages of a long run, for a script that sources this file and sets `stage_logs` to a directory, which is emptied. Each
# stage's output is printed and logged. When the script exits, successfully or not, it prints the duration of each
# stage, and the slowest packages and specs of all logs and of Ginkgo's reports (*.json) in that directory.

rm -rf "${stage_logs:?}"
mkdir -p "$stage_logs"
stage_rows=()
stages_began=$SECONDS
beside_job=
trap print_stages EXIT

# stage TITLE COMMAND...: runs a command. If it fails, the script exits with its status.
stage() {
	local title=$1 began=$SECONDS status=0
	local log=$stage_logs/$((${#stage_rows[@]} + 1)).log
	shift
	echo "=== $title (after $((SECONDS - stages_began))s)"
	# The row of a stage that is interrupted by a signal.
	stage_rows+=("$(printf '%5ds  %-7s  %s' 0 ended "$title")")
	"$@" 2>&1 | tee "$log" || status=$?
	local result=ok
	[ $status = 0 ] || result=failed
	stage_rows[-1]=$(printf '%5ds  %-7s  %s' $((SECONDS - began)) $result "$title")
	[ $status = 0 ] || exit $status
}

# beside TITLE COMMAND...: starts a stage that runs beside the following ones, in the processor time that they leave
# idle while they wait. The script has to call finish_beside after them.
beside() {
	beside_title=$1 beside_began=$SECONDS
	beside_log=$stage_logs/beside.log
	shift
	echo "=== $beside_title, beside the next stages (after $((SECONDS - stages_began))s)"
	set -m # a process group of its own
	"$@" >"$beside_log" 2>&1 </dev/null &
	beside_job=$!
	set +m
}

# finish_beside: waits for the stage, and prints its output. If it failed, the script exits with its status.
finish_beside() {
	local status=0 result=ok
	wait "$beside_job" || status=$?
	beside_job=
	[ $status = 0 ] || result=failed
	echo "=== output of $beside_title"
	cat "$beside_log"
	stage_rows+=("$(printf '%5ds  %-7s  %s' $((SECONDS - beside_began)) $result "$beside_title (beside others)")")
	[ $status = 0 ] || exit $status
}

# end_beside: ends the stage.
end_beside() {
	kill -- "-$beside_job" 2>/dev/null || true
	wait "$beside_job" || true
}

# print_stages [STATUS]: prints the tables, and exits with the status, by default that of the last command.
print_stages() {
	local status=${1:-$?}
	[ -z "$beside_job" ] || end_beside
	printf '=== stages\n'
	[ ${#stage_rows[@]} = 0 ] || printf '%s\n' "${stage_rows[@]}"
	printf '%5ds  in all\n' $((SECONDS - stages_began))
	go run -trimpath -tags netgo,osusergo ./hack/slowest "$stage_logs" || echo "the slowest packages and specs could not be listed" >&2
	exit $status
}
