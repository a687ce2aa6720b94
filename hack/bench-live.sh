#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-live.sh [COUNT]: migrates a guest COUNT times to another node and back, on the local cluster, which it starts if
# there is none. The guest is under load, increments a counter, writes a log with checksums to a shared disk and keeps a
# TCP connection open; the script checks all of them. It writes times and downtimes to .bench/live.json.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/bench
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
[ -n "$own_cluster" ] || { echo "bench-live accesses the nodes' disks and network: it needs the cluster of \`make cluster-up\`; unset KUBECONFIG" >&2; exit 1; }
export VIREO_E2E_MOVES=${1:-10} VIREO_E2E_MOVES_REPORT=$PWD/.bench/live.json VIREO_CLUSTER=$PWD/hack/cluster/cluster
steps=$((local_steps + 1))

bring_up 2 "${measured_images[@]}"
watched "$VIREO_E2E_MOVES migrations" \
	go tool ginkgo run --timeout=3h --focus='A migrating guest keeps its count' ./test/e2e
cat "$VIREO_E2E_MOVES_REPORT"
