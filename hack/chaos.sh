#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# chaos.sh: migrates a guest between two local nodes, kills processes and cuts connections; see test/chaos/README.md.
# RUNS is the number of migrations, SEED repeats an earlier run. The cluster is kept.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -n "${KUBECONFIG:-}" ]; then
	echo "chaos.sh kills processes of the nodes: it needs the cluster of 'make cluster-up'; unset KUBECONFIG" >&2
	exit 1
fi
step_logs=$PWD/.build/chaos
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
steps=$((local_steps + 1))

bring_up 2 "${measured_images[@]}"
rootfs=$(hack/images/rootfs.sh --unpacked virt-launcher)
go build -o .build/chaos/chaos ./test/chaos
exec .build/chaos/chaos --cluster "$PWD/hack/cluster/cluster" --launcher-rootfs "$rootfs" ${RUNS:+--runs "$RUNS"} ${SEED:+--seed "$SEED"}
