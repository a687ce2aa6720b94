# shellcheck shell=bash
# Progress of long-running scripts, which source this file after setting `steps` to their number of steps.

step_number=0

# step TITLE COMMAND...: runs a command with its output in a log, and prints the title and the seconds. If the command
# fails, it prints what failed, and the path and the end of the log.
step() {
	local title=$1 began=$SECONDS log
	shift
	step_number=$((step_number + 1))
	log=${step_logs:?}/$step_number.log
	printf '[%d/%d] %s … ' "$step_number" "$steps" "$title"
	[ -t 1 ] || printf '\n'
	if "$@" >"$log" 2>&1; then
		printf '%ds\n' $((SECONDS - began))
		return
	fi
	printf 'failed after %ds\n' $((SECONDS - began))
	tail -25 "$log" | sed 's/^/    /'
	echo "failed: $title; the whole log is in $log" >&2
	exit 1
}

# watched TITLE COMMAND...: like step, for commands that take minutes: prints their progress.
watched() {
	local title=$1 began=$SECONDS log
	shift
	step_number=$((step_number + 1))
	log=${step_logs:?}/$step_number.log
	printf '[%d/%d] %s\n' "$step_number" "$steps" "$title"
	if "$@" 2>&1 | tee "$log" | sed -u 's/^/    /'; then
		printf '    done in %ds\n' $((SECONDS - began))
		return
	fi
	echo "failed: $title after $((SECONDS - began))s; the whole log is in $log" >&2
	exit 1
}
