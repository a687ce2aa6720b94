#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Removes Vireo in the order that leaves nothing waiting: VMs stop while agents are there to stop them, the KubeVirt object
# takes away what its reconciler installed, and the manager and the CRDs go last.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export KUBECONFIG=${KUBECONFIG:-$PWD/.cluster/kubeconfig}
kubectl=bin/kubectl
if $kubectl get crd kubevirts.kubevirt.io >/dev/null 2>&1; then
	for kind in virtualmachines virtualmachineinstances; do
		$kubectl delete "$kind" --all --all-namespaces --timeout=5m
	done
	$kubectl delete kubevirts --all --all-namespaces --timeout=5m
fi
$kubectl delete --ignore-not-found --timeout=5m -f dist/install.yaml
