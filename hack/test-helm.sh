#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Installs the Helm chart on a local cluster of one node with Helm itself, starts a VM, upgrades to images of another
# tag while the VM runs, and uninstalls. Fails if the upgrade disturbs the guest, or if anything but the CRDs is left.
# Removes the cluster; KEEP=1 keeps it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
step_logs=$PWD/.build/test-helm
mkdir -p "$step_logs"
unset KUBECONFIG
. hack/steps.sh
. hack/deploy-local.sh
steps=9
components=(virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver)
export TAG=${TAG:-dev}
first=$TAG
second=$first-next
helm=$(hack/tools/build.sh --path helm)/helm
export HELM_CACHE_HOME=$step_logs/helm HELM_CONFIG_HOME=$step_logs/helm HELM_DATA_HOME=$step_logs/helm

# The functions are run by `step`, in a condition, where a failed command does not end them: so each line leads to the
# next by &&.
build_all() {
	local name
	build_images "${components[@]}" guest-small || return 1
	for name in "${components[@]}"; do mv ".build/images/$name.tar" ".build/images/$name-first.tar"; done
	TAG=$second hack/images/build.sh "${components[@]}"
}

load_all() {
	local name archives=(.build/images/guest-small.tar)
	for name in "${components[@]}"; do archives+=(".build/images/$name-first.tar" ".build/images/$name.tar"); done
	hack/cluster/cluster load "${archives[@]}"
}

# release VERB TAG: installs or upgrades the release, and waits for the KubeVirt object to report it. Its conditions
# alone could still be those of the former release.
release() {
	"$helm" "$1" vireo charts/vireo --namespace kubevirt --create-namespace --wait --timeout 10m \
		--set "image.tag=$2,emulation=true,kubevirt.spec.configuration.network.defaultNetworkInterface=masquerade" &&
		$kubectl -n kubevirt wait kubevirt/kubevirt --for="jsonpath={.status.observedKubeVirtVersion}=$2" --timeout=10m &&
		$kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Available --timeout=5m &&
		$kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Progressing=False --timeout=10m &&
		$kubectl -n kubevirt rollout status deployment/virt-controller --timeout=5m &&
		$kubectl -n kubevirt rollout status deployment/virt-api --timeout=5m &&
		$kubectl -n kubevirt rollout status daemonset/virt-broker --timeout=5m &&
		$kubectl -n kubevirt rollout status daemonset/virt-handler --timeout=5m &&
		$kubectl -n kubevirt rollout status deployment/virt-exportproxy --timeout=5m &&
		"$helm" list --namespace kubevirt
}

# guest: prints the VMI's UID and that of its Pod, and the restarts of the Pod's containers.
guest() {
	$kubectl get vmi small -o jsonpath='{.metadata.uid}{"\n"}'
	$kubectl get pods -l kubevirt.io/vm=small -o jsonpath='{range .items[*]}{.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}'
}

start_vm() {
	sed "s#guest-small:dev#guest-small:$first#; s#^      labels:#&\n        kubevirt.io/vm: small#" config/samples/vm-small.yaml | $kubectl apply -f - &&
		$kubectl wait vm/small --for=condition=Ready --timeout=5m
}

upgrade() {
	local before after images_now
	before=$(guest) && release upgrade "$second" && after=$(guest) || return 1
	echo "before: $before; after: $after"
	[ "$before" = "$after" ] || return 1
	images_now=$($kubectl -n kubevirt get pods -o jsonpath='{range .items[?(@.status.phase=="Running")]}{.spec.containers[0].image}{"\n"}{end}')
	echo "$images_now"
	if [ -z "$images_now" ] || grep -v ":$second\$" <<<"$images_now"; then
		return 1
	fi
	$kubectl wait vm/small --for=condition=Ready --timeout=1m
}

# leftovers: prints objects of Vireo outside of the CRDs. The Secret and the Lease that virt-controller needs until it
# ends go with the namespace.
leftovers() {
	local kinds=deployments,daemonsets,services,secrets,configmaps,serviceaccounts,roles,rolebindings,jobs,pods,leases.coordination.k8s.io
	$kubectl -n kubevirt get "$kinds" -o name |
		filter -vxE '.*/(default|kube-root-ca\.crt)|secret/kubevirt-controller-certs|lease.coordination.k8s.io/virt-controller' &&
		$kubectl get clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations -o name |
		filter -E 'kubevirt|virt-' &&
		$kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses -o name | filter -E 'kubevirt|virt-' &&
		$kubectl get apiservices -o name | filter subresources &&
		$kubectl get pods -A -l kubevirt.io=virt-launcher -o name &&
		$kubectl get nodes -o json | filter -oE '"[a-z.-]*kubevirt\.io/[^"]*": "[^"]*"' | filter -v '"devices\.'
}

# filter ARGUMENT...: grep, to which no match is no error.
filter() { grep "$@" || [ $? = 1 ]; }

uninstall() {
	local left
	"$helm" uninstall vireo --namespace kubevirt --wait --timeout 10m || return 1
	$kubectl -n kubevirt wait pods --all --for=delete --timeout=2m || return 1
	left=$(leftovers) || return 1
	[ -z "$left" ] || {
		echo "left after helm uninstall:"
		echo "$left"
		return 1
	}
	$kubectl get crd virtualmachines.kubevirt.io
}

finish() {
	[ -z "${KEEP:-}" ] || return 0
	hack/cluster/cluster down
	hack/cluster/cluster leftovers
}

watched "Debian packages" make deps
watched "Helm" hack/tools/build.sh helm
watched "local cluster" make cluster-up NODES=1
watched "images, with two tags" build_all
step "loading images into the node" load_all
trap finish EXIT
step "helm install" release install "$first"
step "starting a VM" start_vm
step "helm upgrade, while the VM runs" upgrade
step "helm uninstall" uninstall
