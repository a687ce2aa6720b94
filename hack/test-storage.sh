#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Starts a local cluster of two nodes with the CSI driver and uses its volumes: files and devices, snapshots, clones,
# group snapshots, expansion, two nodes, and processes that are killed. Fails if a sidecar lacks a permission, or if
# anything is left after the cluster is removed while Pods use volumes. KEEP=1 keeps the cluster.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/test-storage
mkdir -p "$step_logs"
unset KUBECONFIG
. hack/steps.sh
steps=13
cluster=hack/cluster/cluster
kubectl="bin/kubectl --kubeconfig .cluster/kubeconfig"

# The functions are run by `step`, in a condition, where a failed command does not end them: so each line leads to the
# next by &&.

# claim NAME SIZE ACCESS [FIELD...]: creates a claim with further fields of its spec.
claim() {
	local name=$1 size=$2 access=$3 fields
	shift 3
	fields=$(printf ', %s' "$@")
	$kubectl apply -f - <<-YAML
		{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: $name},
		 spec: {resources: {requests: {storage: $size}}, accessModes: [$access]${*:+$fields}}}
	YAML
}

# pod NAME NODE CLAIM...: creates a Pod with claims at /CLAIM, as a device if the name begins with "block". There is no
# image with a shell: it has that of its node.
pod() {
	local name=$1 node=$2 volumes='' mounts='' devices='' what
	shift 2
	for what in usr lib lib64; do
		volumes+="{name: $what, hostPath: {path: /$what}}, "
		mounts+="{name: $what, mountPath: /$what, readOnly: true}, "
	done
	for what; do
		volumes+="{name: $what, persistentVolumeClaim: {claimName: $what}}, "
		case $what in
		block*) devices+="{name: $what, devicePath: /$what}, " ;;
		*) mounts+="{name: $what, mountPath: /$what}, " ;;
		esac
	done
	$kubectl apply -f - <<-YAML
		apiVersion: v1
		kind: Pod
		metadata: {name: $name}
		spec:
		  nodeSelector: {kubernetes.io/hostname: $node}
		  terminationGracePeriodSeconds: 1
		  containers:
		  - name: shell
		    image: localhost/vireo/pause:local
		    env: [{name: PATH, value: "/usr/bin:/usr/sbin"}]
		    volumeMounts: [$mounts]
		    volumeDevices: [$devices]
		  volumes: [$volumes]
	YAML
}

ready() { $kubectl wait pod "$@" --for=condition=Ready --timeout=2m; }

# in_pod NAME COMMAND: runs a shell command in a Pod.
in_pod() { $kubectl exec "$1" -- sh -c "$2"; }

# larger POD DIRECTORY BYTES: fails if a filesystem is not larger than that.
larger() { in_pod "$1" "df -B1 $2 && test \$(df -B1 --output=size $2 | tail -1) -gt $3"; }

# expect WANT COMMAND...: fails if a command prints something else.
expect() {
	local want=$1 got
	shift
	got=$("$@") || return 1
	[ "$got" = "$want" ] || {
		echo "$*: got '$got', want '$want'"
		return 1
	}
}

snapshot() {
	$kubectl apply -f - <<-YAML && $kubectl wait "volumesnapshot/$1" --for=jsonpath='{.status.readyToUse}'=true --timeout=1m
		{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: $1}, spec: {source: {persistentVolumeClaimName: $2}}}
	YAML
}

from_snapshot() { echo "dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: $1}"; }

capacity() { $kubectl wait "pvc/$1" --for=jsonpath='{.status.capacity.storage}'="$2" --timeout=2m; }

kinds() {
	$kubectl get storageclass local local-immediate && $kubectl get volumesnapshotclass,volumegroupsnapshotclass local &&
		expect "csi.vireo.local csi.vireo.local" $kubectl get csinodes -o jsonpath='{.items[*].spec.drivers[*].name}'
}

files() {
	claim disk 1Gi ReadWriteOnce && pod writer node1 disk && ready writer &&
		in_pod writer 'echo first >/disk/file; sync' && snapshot disk disk && in_pod writer 'echo second >/disk/file; sync'
}

copies() {
	claim restored 2Gi ReadWriteOnce "$(from_snapshot disk)" &&
		claim clone 1Gi ReadWriteOnce 'dataSource: {kind: PersistentVolumeClaim, name: disk}' &&
		pod reader node1 restored clone && ready reader &&
		expect first in_pod reader 'cat /restored/file' && expect second in_pod reader 'cat /clone/file' &&
		larger reader /restored 2000000000
}

grow() {
	$kubectl patch pvc "$1" -p "{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"$2\"}}}}" &&
		$kubectl wait "pvc/$1" --for=jsonpath='{.status.capacity.storage}'="$2" --timeout=2m
}

blocks() {
	claim block 64Mi ReadWriteMany 'volumeMode: Block' && pod left node1 block && pod right node2 block && ready left right &&
		in_pod left 'echo shared | dd of=/block conv=fsync' && expect shared in_pod right 'head -c 6 /block' &&
		snapshot block block && in_pod right 'echo other- | dd of=/block conv=fsync' &&
		claim block-restored 128Mi ReadWriteMany 'volumeMode: Block' "$(from_snapshot block)" && pod third node1 block-restored && ready third &&
		expect shared in_pod third 'head -c 6 /block-restored' && expect 134217728 in_pod third 'blockdev --getsize64 /block-restored'
}

expansion() {
	grow disk 3Gi && larger writer /disk 3000000000 && expect second in_pod writer 'cat /disk/file' &&
		grow block 256Mi && expect 268435456 in_pod left 'blockdev --getsize64 /block' && expect 268435456 in_pod right 'blockdev --getsize64 /block'
}

nodes() {
	claim shared 64Mi ReadWriteMany && pod one node1 shared && pod two node2 shared && ready one two &&
		in_pod one 'echo both >/shared/file' && expect both in_pod two 'cat /shared/file' &&
		pod second node2 disk && event FailedAttachVolume second && $kubectl delete pod second
}

# event REASON POD: waits for an event of a Pod.
event() {
	local try
	for try in {1..60}; do
		$kubectl get events --field-selector "reason=$1,involvedObject.name=$2" -o name | grep -q . && return
		sleep 1
	done
	echo "Pod $2 has no event $1"
	return 1
}

group() {
	$kubectl label pvc disk shared group=both && in_pod one 'echo grouped >/shared/file' && $kubectl apply -f - <<-YAML &&
		apiVersion: groupsnapshot.storage.k8s.io/v1
		kind: VolumeGroupSnapshot
		metadata: {name: both}
		spec: {source: {selector: {matchLabels: {group: both}}}}
	YAML
		$kubectl wait volumegroupsnapshot/both --for=jsonpath='{.status.readyToUse}'=true --timeout=1m &&
		claim member 64Mi ReadWriteMany "$(from_snapshot "$(member shared)")" && pod grouped node2 member && ready grouped &&
		expect grouped in_pod grouped 'cat /member/file'
}

# member CLAIM: prints the name of the snapshot of a claim in the group snapshot.
member() {
	$kubectl get volumesnapshots -o jsonpath="{range .items[?(@.spec.source.persistentVolumeClaimName=='$1')]}{.metadata.name}{end}"
}

kills() {
	local processes
	processes=$($cluster env | sed -nE 's/^VIREO_CLUSTER_PID_(CSI_|SNAPSHOT_|NODE[12]_CSI).*=//p') && [ "$(wc -w <<<"$processes")" = 8 ] &&
		kill -KILL $processes || return 1
	# While nothing serves volumes, Pods keep theirs.
	expect second in_pod writer 'cat /disk/file' && $cluster start && $cluster status &&
		expect second in_pod writer 'cat /disk/file' && $kubectl delete pod writer && claim after 64Mi ReadWriteOnce &&
		pod writer node2 disk after && ready writer && expect second in_pod writer 'cat /disk/file' && snapshot after after && grow after 128Mi
}

permissions() {
	local logs=/var/lib/vireo-cluster/log
	# A log that ends in .1 is of a process that was killed.
	cat $logs/{csi-{provisioner,attacher,resizer,snapshotter},snapshot-controller}.log{,.1} >"$step_logs/sidecars.log" &&
		! grep -i forbidden "$step_logs/sidecars.log"
}

# deletion: deletes all but the Pod writer and its claims. What was made of deleted volumes stays usable.
deletion() {
	local volumes left
	volumes=$($kubectl get pvc block block-restored shared restored clone member -o jsonpath='{range .items[*]}pv/{.spec.volumeName} {end}') &&
		$kubectl delete volumegroupsnapshot,volumesnapshot --all --timeout=2m &&
		$kubectl delete pod left right third one two reader grouped --timeout=2m &&
		$kubectl delete pvc block block-restored shared restored clone member --timeout=2m &&
		$kubectl wait $volumes --for=delete --timeout=2m || return 1
	left=$(cd /var/lib/vireo-cluster/volumes && ls -d volumes/* snapshots/* groups/* half-made/* 2>/dev/null) || true
	[ "$(wc -l <<<"$left")" = 2 ] && expect second in_pod writer 'cat /disk/file' || {
		echo "left: $left"
		return 1
	}
}

removal() {
	[ -n "${KEEP:-}" ] || { $cluster down && $cluster leftovers; }
}

watched "Debian packages" make deps
watched "local cluster (the first time, building Kubernetes takes about 8 minutes)" make cluster-up NODES=2 STORAGE=1
trap removal EXIT
step "classes" kinds
step "a volume and its snapshot" files
step "a volume from a snapshot, and a clone" copies
step "block volumes, on two nodes" blocks
step "expansion while Pods run" expansion
step "filesystems on two nodes, and on one only" nodes
step "group snapshot" group
step "killing all that serves volumes" kills
step "deletion" deletion
step "permissions of the sidecars" permissions
trap - EXIT
step "removing the cluster while a Pod uses volumes, and checking for leftovers" removal
