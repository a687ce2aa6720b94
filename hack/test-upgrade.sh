#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Upgrades from an earlier release to this commit on a local cluster of two nodes, and back, while guests run. FROM is
# the release's tag or commit, by default the newest tag before this commit. Its images are built by its own scripts,
# and deployed by its own manifests. The specs with the label "upgrade" of the end-to-end suite do the rest. Removes the
# cluster and the checkout of FROM; KEEP=1 keeps both.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
from=${FROM:-$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null)} || {
	echo "test-upgrade: there is no tag before this commit: set FROM to the tag or commit to upgrade from" >&2
	exit 1
}
commit=$(git rev-parse --verify --quiet "$from^{commit}") || {
	echo "test-upgrade: FROM=$from is neither a tag nor a commit of this clone" >&2
	exit 1
}
step_logs=$PWD/.build/test-upgrade
mkdir -p "$step_logs"
unset KUBECONFIG
. hack/steps.sh
. hack/deploy-local.sh
steps=9
components=(virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver)
tree=$step_logs/tree
# The versions have an order, on which that of the rollout depends. This commit is newer than any release.
previous=v0.0.0-g${commit:0:12}
[[ ! $from =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || previous=$from
export TAG=v900.0.0

# The functions are run by `step`, in a condition, where a failed command does not end them: so each line leads to the
# next by &&.
check_out() {
	rm -rf "$tree" && git worktree add --force --detach "$tree" "$commit"
}

build_previous() {
	local name known=()
	for name in "${components[@]}"; do [ ! -d "$tree/cmd/$name" ] || known+=("$name"); done
	(cd "$tree" && TAG=$previous build_images "${known[@]}")
}

load_all() {
	local name archives=(.build/images/guest-small.tar)
	for name in "${components[@]}"; do
		archives+=(".build/images/$name.tar")
		[ ! -d "$tree/cmd/$name" ] || archives+=("$tree/.build/images/$name.tar")
	done
	hack/cluster/cluster load "${archives[@]}"
}

deploy_previous() {
	TAG=$previous deploy "$tree"
}

write_manifests() {
	cp "$tree/dist/install.yaml" "$step_logs/previous.yaml" && hack/installer.sh "$step_logs/present.yaml"
}

run_specs() {
	VIREO_CLUSTER=$PWD/hack/cluster/cluster VIREO_E2E_INSTALLERS=$step_logs \
		go tool ginkgo run --timeout=90m -v --label-filter=upgrade --fail-on-empty ${GINKGO_FLAGS:-} ./test/e2e
}

finish() {
	[ -z "${KEEP:-}" ] || return 0
	[ ! -e "$tree" ] || git worktree remove --force "$tree"
	hack/cluster/cluster down
	hack/cluster/cluster leftovers
}

watched "Debian packages" make deps
trap finish EXIT
step "checking out $from" check_out
watched "images of $from" build_previous
watched "images of this commit" build_images "${components[@]}" guest-small
watched "local cluster" make cluster-up NODES=2
step "loading images into the nodes" load_all
step "deploying $from" deploy_previous
step "manifests of both versions" write_manifests
watched "upgrade to this commit, and back" run_specs
