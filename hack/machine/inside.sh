#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# What the machine of hack/machine/test.sh runs: a cluster, Vireo, and the specs. It writes to /results.
set -euo pipefail

. /vireo/settings
export PATH=$PATH:/usr/sbin:/sbin KUBECONFIG=/vireo/.cluster/kubeconfig
export VIREO_CLUSTER=/vireo/bin/cluster VIREO_E2E_SLOWNESS=6 VIREO_E2E_OWN_MACHINE=1
cluster=/vireo/bin/cluster
kubectl=/vireo/bin/kubectl
tools=/vireo/tools

# say TEXT: writes to the log, with the seconds since power-on.
say() { printf '[%4.0f s] %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*" >>/results/log.txt; }

# logged COMMAND...: runs it, and writes its output to the log if it fails.
logged() {
	"$@" >/tmp/output 2>&1 && return
	say "failed: $*"
	tail -40 /tmp/output >>/results/log.txt
	return 1
}

facts() {
	say "$(uname -r), cgroup $(stat -fc %T /sys/fs/cgroup), KVM $(ls -l /dev/kvm 2>&1), AppArmor $(cat /sys/module/apparmor/parameters/enabled)"
}

up() {
	local exclusive=()
	[ "$NODES" -gt 1 ] || exclusive=(--exclusive-cpus)
	logged "$cluster" up --nodes "$NODES" "${exclusive[@]}" --clone /vireo --kubernetes $tools/kubernetes --etcd $tools/etcd --containerd $tools/containerd \
		--coredns $tools/coredns --multus $tools/multus --pause $tools/pause/pause
}

load() {
	local archive
	for archive in /vireo/images/*.tar; do
		logged "$cluster" load "$archive"
		rm "$archive"
		say "loaded ${archive##*/}"
	done
}

deploy() {
	logged $kubectl apply --server-side -f /vireo/config/install.yaml
	logged $kubectl -n kubevirt rollout status deployment/virt-controller --timeout=30m
	sed 's/useEmulation: true/useEmulation: false/' /vireo/config/kubevirt.yaml >/tmp/kubevirt.yaml
	logged $kubectl apply --server-side -f /tmp/kubevirt.yaml
	logged $kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Available --timeout=30m
	logged $kubectl wait node --all --for=jsonpath='{.metadata.labels.kubevirt\.io/schedulable}'=true --timeout=30m
}

specs() {
	mkdir -p /vireo/test/e2e
	cd /vireo/test/e2e
	ln -sfn /vireo/testdata testdata
	/vireo/bin/e2e.test -ginkgo.v -ginkgo.fail-on-empty -ginkgo.no-color -ginkgo.timeout=5h -ginkgo.focus="$FOCUS" -ginkgo.label-filter="$LABELS" \
		-ginkgo.junit-report=/results/junit.xml >/results/specs.txt 2>&1
}

# benches: measures. It runs in a condition, where a failed command does not end it: so each line leads to the next.
benches() {
	local audit
	audit=$("$cluster" env | sed -n 's/^VIREO_CLUSTER_AUDIT_LOG=//p') && mkdir -p /results/bench /vireo/test/integration &&
		/vireo/bin/bench-start --count 3 --audit-log "$audit" --output /results/bench/start.json \
			>/results/bench/start.txt 2>/results/bench/start.log &&
		say "measured starts" &&
		VIREO_E2E_PLUGS=5 VIREO_E2E_PLUGS_REPORT=/results/bench/hotplug.json VIREO_CLUSTER_AUDIT_LOG=$audit \
			FOCUS='The costs of hotplug' LABELS='' specs &&
		say "measured hotplug" &&
		chmod 0666 /dev/kvm && # this libvirtd is in no Pod
		cd /vireo/test/integration &&
		VIREO_LIBVIRTD_KVM=1 VIREO_LAUNCHER_ROOTFS=/vireo/launcher VIREO_GUEST_BOOT=/vireo/guest \
			VIREO_BENCH_MIGRATE=/results/bench/migrate.json VIREO_BENCH_MIGRATE_COUNT=5 \
			/vireo/bin/integration.test -ginkgo.no-color -test.timeout 60m -ginkgo.label-filter bench >/results/bench/migrate.log 2>&1 &&
		say "measured migrations"
}

# denials: fails if AppArmor has denied anything.
denials() {
	say "AppArmor has denied $(journalctl -k --no-pager | grep -c 'apparmor="DENIED"') accesses"
	! journalctl -k --no-pager | grep 'apparmor="DENIED"' >>/results/log.txt
}

# skipped: fails if a spec was skipped, since this machine has what each needs, but for a second node, and for a CPU
# model that QEMU emulates completely.
skipped() {
	local needs='migrations need two nodes\|no model that is not obsolete'
	! grep -o '<skipped message="skipped - [^"]*"' /results/junit.xml | grep -v "$needs" >>/results/log.txt
}

# collect: saves what explains a failure.
collect() {
	set +e # each line on its own: a cluster that did not start has no logs
	dmesg >/results/dmesg.txt
	journalctl --no-pager >/results/journal.txt
	{
		$kubectl get nodes -o yaml
		$kubectl get pods,vmis,events -A
	} >/results/cluster.txt 2>&1
	cp -r /var/lib/vireo-cluster/log /results/cluster-logs
	say "ended: $(cat /results/result)"
	kill %1 2>/dev/null || true
}

# observe: saves what runs, again and again, for a run that hangs.
observe() {
	while sleep 20; do
		{
			date
			$kubectl get pods,vmis -A -o wide
			$kubectl get events -A --sort-by=.lastTimestamp | tail -15
			ps -eo pcpu,etimes,args --sort=-pcpu | head -8 | cut -c1-150
		} >/results/now.new 2>&1 || true
		mv /results/now.new /results/now.txt
	done
}

echo 1 >/results/result
trap collect EXIT
facts
say "starting the cluster"
up
observe &
say "loading images"
load
say "deploying"
deploy
rc=0
if [ -n "$BENCH" ]; then
	say "measuring"
	benches || rc=$?
	cat /results/bench/*.txt >>/results/log.txt || true
else
	say "running specs"
	specs || rc=$?
	tail -40 /results/specs.txt >>/results/log.txt
	skipped || rc=1
fi
denials || rc=1
echo $rc >/results/result
