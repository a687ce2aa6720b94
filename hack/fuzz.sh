#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs every fuzz target for TIME (10s, 1h) and prints a line for each. JOBS run in parallel, by default one per CPU;
# with more JOBS each target still runs for TIME, but executes fewer inputs. Inputs that crash a target are written to
# its package's testdata/fuzz: commit them with the fix. With THIRD=1, 2 or 3 only the targets of every third package
# run.
#
# Only Vireo's packages and the DHCP parser are instrumented: `go test -fuzz` would compile every dependency again.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:?usage: fuzz.sh TIME [PATTERN]}
jobs=${JOBS:-$(nproc)}
pattern=${2:-.}
third=${THIRD:-}
module=$(go list -m)
cache=${VIREO_CACHE:-$HOME/.cache/vireo}/fuzz
binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT

# ended_late LOG: whether a target failed for nothing but its end. Go's fuzzing reports "context deadline exceeded" as a
# failure if the time is over while it waits for a worker. A crash or a hang says so instead, and names the input that
# it wrote.
ended_late() {
	grep -qx '    context deadline exceeded' "$1" && ! grep -qE 'Failing input written|hung or terminated|panic' "$1"
}

# run BINARY DIR NAME: fuzzes a target, prints its line, and creates a file in $binaries/failed if it crashed.
run() {
	local log=$binaries/${2//\//_}.$3.log crashes=0 last execs interesting
	(cd "$2" && "$1" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$time" -test.fuzzcachedir "$cache/$2" -test.parallel 1) >"$log" 2>&1 || crashes=1
	if [ "$crashes" != 0 ] && ended_late "$log"; then
		crashes=0
	fi
	# The last line like "fuzz: elapsed: 10s, execs: 1234 (100/sec), new interesting: 5 (total: 12)".
	last=$(grep -E '^fuzz: elapsed: .*execs' "$log" | tail -1 || true)
	execs=$(sed -nE 's/.*execs: ([0-9]+).*/\1/p' <<<"$last")
	interesting=$(sed -nE 's/.*new interesting: ([0-9]+).*/\1/p' <<<"$last")
	printf '%-52s %-18s execs %10s   new interesting %5s   crashes %s\n' "$2" "$3" "${execs:-0}" "${interesting:-0}" "$crashes"
	if [ "$crashes" != 0 ]; then
		echo "$2 $3" >"$binaries/failed/${2//\//_}.$3"
		tail -40 "$log" >&2
	fi
	rm -f "$log"
}

mkdir "$binaries/failed"
targets=0 index=0
while IFS= read -r dir; do
	mapfile -t names < <(grep -hoP '^func \KFuzz\w+' "$dir"/*_test.go | grep -E "$pattern" || true)
	[ ${#names[@]} -gt 0 ] || continue
	index=$((index + 1))
	[ -z "$third" ] || [ $((index % 3 + 1)) = "$third" ] || continue
	binary=$binaries/${dir//\//_}.test
	go test -c -o "$binary" -gcflags="$module/internal/...=-d=libfuzzer" -gcflags=github.com/insomniacslk/dhcp/...=-d=libfuzzer "./$dir"
	for name in "${names[@]}"; do
		targets=$((targets + 1))
		while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
			wait -n
		done
		run "$binary" "$dir" "$name" &
	done
done < <(grep -rlE '^func Fuzz' --include='*_test.go' internal | xargs -n1 dirname | sort -u)
wait

mapfile -t failed < <(cat "$binaries"/failed/* 2>/dev/null)
if [ ${#failed[@]} -gt 0 ]; then
	printf 'fuzz: %s of %s targets failed:\n' "${#failed[@]}" "$targets" >&2
	printf '  %s\n' "${failed[@]}" >&2
	exit 1
fi
echo "fuzz: $targets targets for $time each, nothing found"
