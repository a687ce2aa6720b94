#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-start.sh [COUNT]: measures VM starts on the local cluster, which it starts if there is none.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=${1:-10}
step_logs=$PWD/.build/bench
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
steps=$((local_steps + 1))

bring_up 1 "${measured_images[@]}"
if [ -n "$own_cluster" ]; then
	audit=$(hack/cluster/cluster env | sed -n 's/^VIREO_CLUSTER_AUDIT_LOG=//p')
fi
go run ./test/perf/start --count "$count" --audit-log "${audit:-}" --output .bench/start.json
