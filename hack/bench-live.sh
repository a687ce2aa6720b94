#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-live.sh [COUNT]: moves one guest COUNT times there and back between two nodes of the local cluster, which it brings up if
# there is none. The guest is under load, counts, keeps a log with checksums on a shared disk and a TCP connection; none of that may
# suffer. Times and downtimes go to .bench/live.json.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/bench
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
[ -n "$own_cluster" ] || { echo "bench-live reaches for the nodes' disks and network: it needs a cluster that \`make cluster-up\` made" >&2; exit 1; }
export VIREO_E2E_MOVES=${1:-10} VIREO_E2E_MOVES_REPORT=$PWD/.bench/live.json VIREO_CLUSTER=$PWD/hack/cluster/cluster
steps=$((local_steps + 1))

bring_up 2 virt-controller virt-api virt-handler virt-launcher guest-small guest-small-kernel test-tools
watched "$VIREO_E2E_MOVES migrations" \
	go tool ginkgo run --timeout=3h --focus='A guest that moves to another node goes there and back' ./test/e2e
cat "$VIREO_E2E_MOVES_REPORT"
