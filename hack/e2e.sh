#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs the end-to-end suite on a local cluster of two nodes, removes the cluster and checks that nothing of it is left.
# With KUBECONFIG it uses that cluster instead. Of the specs marked as extended it runs those that hack/third.sh
# chooses, or all of them with ALL=1 or with FOCUS, which selects specs by name. KEEP=1 keeps the cluster. PROCS is the
# number of parallel specs; specs that disrupt shared components run alone, after the others.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/e2e
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
steps=$((local_steps + 4))

failures=$step_logs/failures.txt
: >"$failures"

# The label filter for Ginkgo, or nothing for all specs.
labels=
[ -n "${ALL:-}${FOCUS:-}" ] || labels=$(hack/third.sh)

# The specs of snapshots and of the importer are extended(1), or chosen for what has changed. The first time, the
# storage's components take about 8 minutes, and the importer takes as long. STORAGE= and IMPORTER= leave them out.
case $labels in
'' | *extended-1* | *of-snapshot* | *of-datavolume*) STORAGE=${STORAGE-1} IMPORTER=${IMPORTER-1} ;;
esac

# The image of virtctl guestfs, a complete Debian of about 1 GB, is for slow specs.
[ -z "${ALL:-}" ] || export GUESTFS=1

# build_prometheus: builds it if its spec runs, which is extended(3) and needs a local cluster.
build_prometheus() {
	case $labels in
	'' | *extended-3* | *of-monitoring*) [ -z "$own_cluster" ] || hack/tools/build.sh prometheus ;;
	esac
}

# build_kubevirt_virtctl: builds KubeVirt's virtctl if all specs run.
build_kubevirt_virtctl() {
	[ -z "${ALL:-}" ] || hack/tools/build.sh kubevirt-virtctl
}

run_suite() {
	local prometheus virtctl
	prometheus=$(hack/tools/build.sh --path prometheus)/prometheus
	virtctl=$(hack/tools/build.sh --path kubevirt-virtctl)/kubevirt-virtctl
	[ -z "${ALL:-}" ] || export KUBEVIRT_VIRTCTL=$virtctl
	[ -z "$own_cluster" ] || export VIREO_CLUSTER=$PWD/hack/cluster/cluster VIREO_PROMETHEUS=$prometheus
	FAILURES_FILE=$failures go tool ginkgo run --procs="${PROCS:-2}" --timeout=75m -v --focus="${FOCUS:-}" --label-filter="$labels" ${GINKGO_FLAGS:-} ./test/e2e
}

finish() {
	[ -n "$own_cluster" ] || return 0
	[ -z "${KEEP:-}" ] || return 0
	hack/cluster/cluster down
	hack/cluster/cluster leftovers
}

watched "Prometheus (the first time, about 6 minutes)" build_prometheus
watched "KubeVirt's virtctl (the first time, about 7 minutes)" build_kubevirt_virtctl
bring_up 2 virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver virt-launcher-previous guest-small guest-small-kernel guest-bare guest-debian test-tools ${GUESTFS:+libguestfs-tools}
# Specs change the mode of the machine's /dev/kvm. A run that is killed must not leave it so.
kvm_mode=$(stat -c %a /dev/kvm 2>/dev/null) || kvm_mode=
trap '[ -z "$kvm_mode" ] || chmod "$kvm_mode" /dev/kvm' EXIT
result=0
(watched "end-to-end suite" run_suite) || result=$?
step_number=$((step_number + 1)) # the subshell has counted for itself
step "removing the cluster, and checking for leftovers" finish
sed 's/^/    /' "$failures"
exit $result
