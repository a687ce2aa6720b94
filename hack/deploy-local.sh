# shellcheck shell=bash
# Functions that the demo, the end-to-end suite and the benchmarks share: a local cluster (or the caller's) with Vireo.
# They source this file after steps.sh, and add `local_steps` to their number of steps.

local_steps=5
own_cluster=1
[ -z "${KUBECONFIG:-}" ] || own_cluster=''
export KUBECONFIG=${KUBECONFIG:-$PWD/.cluster/kubeconfig}
kubectl=bin/kubectl
# The images of the benchmarks and of the chaos test.
# shellcheck disable=SC2034 # the scripts that source this file use it
measured_images=(
	virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver guest-small guest-small-kernel test-tools
)

# bring_up NODES IMAGES...: builds the images, starts the cluster, loads the images and deploys Vireo. With STORAGE=1
# the cluster's volumes have snapshots and clones. With IMPORTER=1 it also has the Containerized Data Importer.
bring_up() {
	local nodes=$1
	shift
	watched "Debian packages" make deps
	if [ -n "$own_cluster" ]; then
		watched "local cluster (the first time, building Kubernetes takes about 8 minutes)" make cluster-up NODES="$nodes" STORAGE="${STORAGE:-}" IMPORTER="${IMPORTER:-}"
	else
		step "kubectl" make bin/kubectl
	fi
	watched "images (the first time, about 5 minutes)" build_images "$@"
	if [ -n "$own_cluster" ]; then
		step "loading images into the nodes" load_images "$@"
	else
		step "pushing images" make image-push
	fi
	step "deploying Vireo" deploy
}

build_images() {
	make build && hack/images/build.sh "$@"
}

load_images() {
	local name archives=()
	for name; do archives+=(".build/images/$name.tar"); done
	hack/cluster/cluster load "${archives[@]}"
}

# deploy [CLONE]: deploys the images of a clone with its manifests, by default those of this one.
deploy() {
	local clone=${1:-.} name digest archives=() workloads=(deployment/virt-controller deployment/virt-api daemonset/virt-handler)
	make -C "$clone" deploy && $kubectl apply --server-side -f "$clone/config/samples/kubevirt.yaml" &&
		$kubectl -n kubevirt wait kubevirt/kubevirt --for=condition=Available --timeout=5m || return 1
	# Earlier releases have no virt-exportproxy and no virt-broker.
	for name in deployment/virt-exportproxy daemonset/virt-broker; do
		[ -z "$($kubectl -n kubevirt get "$name" --ignore-not-found -o name)" ] || workloads+=("$name")
	done
	# A rebuilt image has the same tag: restart the Pods that run an older one.
	for name in virt-{controller,api,handler,broker,launcher,exportproxy,exportserver}; do
		[ ! -e "$clone/.build/images/$name.tar" ] || archives+=("$clone/.build/images/$name.tar")
	done
	digest=$(cat "${archives[@]}" | sha256sum | cut -c1-16) || return 1
	if [ "$($kubectl -n kubevirt get namespace kubevirt -o jsonpath='{.metadata.annotations.vireo-images}')" != "$digest" ]; then
		$kubectl -n kubevirt rollout restart "${workloads[@]}" &&
			$kubectl annotate --overwrite namespace kubevirt vireo-images="$digest" || return 1
	fi
	for name in "${workloads[@]}"; do $kubectl -n kubevirt rollout status "$name" --timeout=5m || return 1; done
	$kubectl wait node --all --for=jsonpath='{.metadata.labels.kubevirt\.io/schedulable}'=true --timeout=3m
}
