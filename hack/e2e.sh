#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs the end-to-end suite on two nodes of this machine, takes the cluster down and checks that nothing of it is left. With
# KUBECONFIG set it runs against that cluster instead. FOCUS picks tests; KEEP=1 leaves the cluster up; PROCS says how many
# run beside each other. Those that kill what all share run alone, after the others.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/e2e
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
steps=$((local_steps + 2))

failures=$step_logs/failures.txt
: >"$failures"

run_suite() {
	[ -z "$own_cluster" ] || export VIREO_CLUSTER=$PWD/hack/cluster/cluster
	FAILURES_FILE=$failures go tool ginkgo run --procs="${PROCS:-2}" --timeout=75m -v --focus="${FOCUS:-}" ${GINKGO_FLAGS:-} ./test/e2e
}

finish() {
	[ -n "$own_cluster" ] || return 0
	[ -z "${KEEP:-}" ] || return 0
	hack/cluster/cluster down
	hack/cluster/cluster leftovers
}

bring_up 2 virt-controller virt-api virt-handler virt-launcher virt-launcher-previous guest-small guest-small-kernel guest-debian test-tools
result=0
(watched "end-to-end suite" run_suite) || result=$?
step "taking the cluster down, and looking for leftovers" finish
sed 's/^/    /' "$failures"
exit $result
