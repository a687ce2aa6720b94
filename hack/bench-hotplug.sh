#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-hotplug.sh [COUNT]: plugs a volume into a running guest COUNT times and unplugs it, on the local cluster, which
# it starts if there is none, and changes the guest's CPUs and memory. It writes times, the guest's stalls and the
# components' writes to .bench/hotplug.json. Another guest then keeps logs with checksums through as many rounds, the
# restart of its agent and a migration.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/bench
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
[ -n "$own_cluster" ] || { echo "bench-hotplug accesses the nodes' disks: it needs the cluster of \`make cluster-up\`; unset KUBECONFIG" >&2; exit 1; }
export VIREO_E2E_PLUGS=${1:-50} VIREO_E2E_PLUGS_REPORT=$PWD/.bench/hotplug.json VIREO_CLUSTER=$PWD/hack/cluster/cluster
steps=$((local_steps + 2))

bring_up 2 "${measured_images[@]}"
VIREO_CLUSTER_AUDIT_LOG=$(hack/cluster/cluster env | sed -n 's/^VIREO_CLUSTER_AUDIT_LOG=//p')
export VIREO_CLUSTER_AUDIT_LOG
watched "$VIREO_E2E_PLUGS plugs and unplugs, measured" \
	go tool ginkgo run --timeout=3h --focus='The costs of hotplug are measured' ./test/e2e
watched "$VIREO_E2E_PLUGS plugs and unplugs while the guest writes, and a migration" \
	go tool ginkgo run --timeout=3h --focus='A guest that logs to hotplugged volumes' ./test/e2e
cat .bench/hotplug.txt
