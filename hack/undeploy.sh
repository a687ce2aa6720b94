#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Removes Vireo in an order in which no finalizer blocks: first VMs and what creates them, which agents stop; then the
# KubeVirt object, whose finalizer removes the components that its reconciler installed; virt-controller and the CRDs
# last.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export KUBECONFIG=${KUBECONFIG:-$PWD/.cluster/kubeconfig}
kubectl=bin/kubectl
if $kubectl get crd kubevirts.kubevirt.io >/dev/null 2>&1; then
	for kind in virtualmachinepools virtualmachineinstancereplicasets virtualmachines virtualmachineinstances; do
		$kubectl delete "$kind" --all --all-namespaces --timeout=5m
	done
	$kubectl delete kubevirts --all --all-namespaces --timeout=5m
fi
$kubectl delete --ignore-not-found --timeout=5m -f dist/install.yaml
