#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-snapshot.sh [COUNT]: takes COUNT snapshots of running guests with 1, 4 and 16 disks, on the local cluster, which
# it starts with storage that makes snapshots if there is none. For each it also freezes the guest with virsh and takes
# VolumeSnapshots. It writes how long the guests were frozen and stalled to .bench/snapshot.json.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/bench
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
export STORAGE=1 VIREO_E2E_SNAPSHOTS=${1:-10} VIREO_E2E_SNAPSHOT_REPORT=$PWD/.bench/snapshot.json
steps=$((local_steps + 1))

bring_up 1 "${measured_images[@]}"
rm -f "$VIREO_E2E_SNAPSHOT_REPORT"
watched "$VIREO_E2E_SNAPSHOTS snapshots of guests with 1, 4 and 16 disks" \
	go tool ginkgo run --timeout=4h --focus='The costs of snapshots are measured' ./test/e2e
[ -e "$VIREO_E2E_SNAPSHOT_REPORT" ] || { echo "bench-snapshot: nothing was measured: the cluster has no VolumeSnapshotClass" >&2; exit 1; }
cat .bench/snapshot.txt
