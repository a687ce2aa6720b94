#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Deploys the Containerized Data Importer on the running local cluster, which needs --storage, and waits until it works.
# The first time, its programs and images are built. `cluster up --importer` runs this.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
prefix=localhost/vireo/cdi
tag=${TAG:-dev}
names=(operator controller apiserver uploadproxy uploadserver importer cloner)
kubectl=$(hack/tools/build.sh --path kubectl)/kubectl
export KUBECONFIG=$PWD/.cluster/kubeconfig

start=$SECONDS
hack/images/build.sh "${names[@]/#/cdi-}" >/dev/null
archives=("${names[@]/#/.build/images/cdi-}")
hack/cluster/cluster load "${archives[@]/%/.tar}"
manifests=$(hack/tools/build.sh --path cdi)/manifests

# apply WHAT...: applies some of the importer's objects.
apply() {
	"$manifests" "$@" | "$kubectl" apply --server-side --force-conflicts -f - >/dev/null
}

apply operator "$prefix" "$tag"
"$kubectl" wait --for=condition=Established --timeout=1m crd/cdis.cdi.kubevirt.io >/dev/null
apply importer
if ! "$kubectl" wait --for=condition=Available --timeout=5m cdi/cdi >/dev/null; then
	"$kubectl" -n cdi get pods >&2
	echo "the importer is not available: see the log of deployment/cdi-operator in the namespace cdi" >&2
	exit 1
fi
apply profiles
echo "the importer is available after $((SECONDS - start)) s"
