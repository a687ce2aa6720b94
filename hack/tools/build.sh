#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Builds the tools that the project needs and that no package of the machine
# provides, from Go modules, into a cache outside the clone:
#
#   ${VIREO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vireo}/bin/<tool>-<version>/<binary>
#
# A cached binary is not built again. A killed build leaves no partial
# binaries: each is renamed into place when it is complete.
#
#   hack/tools/build.sh envtest kubernetes     build these
#   hack/tools/build.sh --path envtest         print their path (builds nothing)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${VIREO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vireo}
bin=$cache/bin
# With the tags of the Makefile, so that the tools share compiled packages with the project where versions are the same.
tags=netgo,osusergo

# Versions of tools. Those of kubernetes, etcd, containerd, coredns, multus, prometheus, csi, cdi and kubevirt-virtctl
# are in their go.mod.
golangci_lint_version=v2.15.0
controller_gen_version=v0.23.0
ginkgo_version=v2.34.0
kustomize_version=v5.8.1
govulncheck_version=v1.9.0
kwok_version=v0.8.0
# The version of test/chart.
helm_version=$(awk '$1 == "helm.sh/helm/v4" { print $2; exit }' "$here/../../test/chart/go.mod")

module_version() { # <tool> <module>
	awk -v m="$2" '$1 == "require" && $2 == m { print $3; exit } $1 == m { print $2; exit }' "$here/$1/go.mod"
}

kubernetes_version=$(module_version kubernetes k8s.io/kubernetes)
etcd_version=$(module_version etcd go.etcd.io/etcd/server/v3)
containerd_version=$(module_version containerd github.com/containerd/containerd/v2)
coredns_version=$(module_version coredns github.com/coredns/coredns)
multus_version=$(module_version multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4)
cdi_version=$(module_version cdi kubevirt.io/containerized-data-importer)
prometheus_version=$(module_version prometheus github.com/prometheus/prometheus)

usage() {
	cat >&2 <<-EOF
		usage: ${0##*/} [--path] <what>...
		what:
		  cluster         all that hack/cluster runs: kubernetes etcd containerd coredns multus
		  envtest         kube-apiserver, etcd and kubectl, where envtest looks for them
		  kubernetes      $kubernetes_version: kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
		  kubectl         $kubernetes_version: kubectl alone
		  kube-scheduler, kube-controller-manager
		                  $kubernetes_version: one of them alone
		  etcd            $etcd_version
		  containerd      $containerd_version: containerd containerd-shim-runc-v2 ctr
		  coredns         $coredns_version, with the plugins of the local cluster alone
		  multus          $multus_version: the network plugin that attaches Pods to further networks
		  cdi             $cdi_version: the commands of the Containerized Data Importer, and one that prints its manifests
		  csi             the sidecars of CSI drivers, snapshot-controller, and the kinds of snapshots (crds)
		  csi-driver      the CSI driver of hack/cluster
		  kubevirt-virtctl
		                  KubeVirt's virtctl, unchanged but without the commands for templates and for consoles
		  promtool        $prometheus_version: Prometheus' tool that tests rules
		  prometheus      $prometheus_version: Prometheus, which finds targets in Kubernetes only, and has no pages for browsers
		  golangci-lint   $golangci_lint_version
		  controller-gen  $controller_gen_version
		  ginkgo          $ginkgo_version
		  kustomize       $kustomize_version
		  govulncheck     $govulncheck_version
		  kwok            $kwok_version: simulated nodes, for make bench-scale
		  helm            $helm_version
		  pause           the sandbox program of hack/cluster
		  program         hack/cluster itself (--path only)
	EOF
	exit 2
}

say() { printf '%s\n' "$*" >&2; }

# once <directory> <binary> <command...>: unless the binary exists, run the
# command with $out set to a temporary directory, where it creates the binary.
once() {
	local dir=$1 name=$2
	shift 2
	[[ -x $dir/$name ]] && return 0
	mkdir -p "$dir"
	(
		# One build per directory at a time: a second caller waits and then finds the binary.
		exec 9>"$dir/.lock"
		flock 9
		[[ -x $dir/$name ]] && exit 0
		local start=$SECONDS
		say "build ${dir##*/} $name ..."
		out=$(mktemp -d "$dir/.build-XXXXXX")
		trap 'rm -rf "$out"' EXIT
		trap 'exit 130' INT TERM
		export out
		"$@"
		mv "$out/$name" "$dir/$name"
		say "build ${dir##*/} $name done in $((SECONDS - start)) s"
	)
}

# from_module <tool> <package> <ldflags>: build from the tool's own module.
# Static and without symbols, so that a binary also runs inside an image.
from_module() {
	(cd "$here/$1" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly \
		go build -trimpath -tags "$tags" -buildvcs=false -ldflags "-s -w $3" -o "$out/" "$2")
}

# prometheus_from_module <binary> [tag]: without the clients of clouds in which
# Prometheus can find targets, unless a tag adds one.
prometheus_from_module() {
	(cd "$here/prometheus" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly \
		go build -trimpath -buildvcs=false -tags "$tags,remove_all_sd${2:+,$2}" -ldflags '-s -w' -o "$out/" "github.com/prometheus/prometheus/cmd/$1")
}

# etcd's main package is the root of a module whose path ends in v3, and go
# install would name the binary after the directory.
etcd_from_module() {
	(cd "$here/etcd" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly \
		go build -trimpath -tags "$tags" -buildvcs=false -ldflags '-s -w' -o "$out/etcd" go.etcd.io/etcd/server/v3)
}

# installed <package@version>
installed() {
	CGO_ENABLED=0 GOWORK=off GOFLAGS=-trimpath GOBIN=$out go install -tags "$tags" -ldflags '-s -w' "$1"
}

dir_of() {
	case $1 in
	envtest) echo "$bin/envtest-${kubernetes_version#v}" ;;
	kubernetes | kubectl | kube-scheduler | kube-controller-manager) echo "$bin/kubernetes-$kubernetes_version" ;;
	etcd) echo "$bin/etcd-$etcd_version" ;;
	containerd) echo "$bin/containerd-$containerd_version" ;;
	coredns) echo "$bin/coredns-$coredns_version-$(cat "$here"/coredns/{main.go,go.mod} | sha256sum | cut -c1-12)" ;;
	multus) echo "$bin/multus-$multus_version" ;;
	cdi) echo "$bin/cdi-$cdi_version-$(cat "$here"/cdi/{go.mod,*/*.go} | sha256sum | cut -c1-12)" ;;
	csi) echo "$bin/csi-$(sha256sum "$here/csi/go.mod" | cut -c1-12)" ;;
	csi-driver) echo "$bin/csi-driver-$(cd "$here/../cluster/csi" && find . -name '*.go' ! -name '*_test.go' -o -name 'go.*' | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-12)" ;;
	kubevirt-virtctl) echo "$bin/kubevirt-virtctl-$(cat "$here"/kubevirt-virtctl/{main.go,go.mod} | sha256sum | cut -c1-12)" ;;
	promtool) echo "$bin/promtool-$prometheus_version" ;;
	prometheus) echo "$bin/prometheus-$prometheus_version" ;;
	golangci-lint) echo "$bin/golangci-lint-$golangci_lint_version" ;;
	controller-gen) echo "$bin/controller-gen-$controller_gen_version" ;;
	ginkgo) echo "$bin/ginkgo-$ginkgo_version" ;;
	kustomize) echo "$bin/kustomize-$kustomize_version" ;;
	govulncheck) echo "$bin/govulncheck-$govulncheck_version" ;;
	kwok) echo "$bin/kwok-$kwok_version" ;;
	helm) echo "$bin/helm-$helm_version" ;;
	pause) echo "$bin/pause-$(sha256sum "$here/../cluster/pause/main.go" | cut -c1-12)" ;;
	program) echo "$bin/cluster" ;;
	*) usage ;;
	esac
}

# project <name> <package>: a program of the project's own module.
project() {
	(cd "$here/../.." && CGO_ENABLED=0 GOWORK=off \
		go build -trimpath -tags "$tags" -buildvcs=false -ldflags '-s -w' -o "$out/$1" "$2")
}

build_kubernetes() { # <binary...>
	local name v=${kubernetes_version#v} x=''
	local major=${v%%.*} minor=${v#*.}
	minor=${minor%%.*}
	for name in gitVersion=$kubernetes_version gitMajor=$major gitMinor=$minor gitTreeState=archive; do
		x+=" -X k8s.io/component-base/version.$name -X k8s.io/client-go/pkg/version.$name"
	done
	for name in "$@"; do
		once "$(dir_of kubernetes)" "$name" from_module kubernetes "k8s.io/kubernetes/cmd/$name" "$x"
	done
}

build_containerd() {
	local name
	for name in containerd containerd-shim-runc-v2 ctr; do
		once "$(dir_of containerd)" "$name" from_module containerd "github.com/containerd/containerd/v2/cmd/$name" \
			"-X github.com/containerd/containerd/v2/version.Version=$containerd_version"
	done
}

build_csi() {
	local package
	for package in external-provisioner/v6/cmd/csi-provisioner external-attacher/v4/cmd/csi-attacher external-resizer/cmd/csi-resizer \
		external-snapshotter/v8/cmd/csi-snapshotter external-snapshotter/v8/cmd/snapshot-controller; do
		once "$(dir_of csi)" "${package##*/}" from_module csi "github.com/kubernetes-csi/$package" ""
	done
	once "$(dir_of csi)" crds snapshot_kinds
}

# snapshot_kinds: the CustomResourceDefinitions of the module that has the kinds' types.
snapshot_kinds() {
	local module=github.com/kubernetes-csi/external-snapshotter/client/v8 dir
	dir=$(cd "$here/csi" && GOWORK=off go mod download "$module" && GOWORK=off GOFLAGS=-mod=readonly go list -m -f '{{.Dir}}' "$module")
	mkdir "$out/crds"
	install -m 0644 "$dir"/config/crd/*snapshot.storage.k8s.io_*.yaml "$out/crds/"
}

# The importer's commands, most of which have their name without the prefix in their image's name.
build_cdi() {
	local module=kubevirt.io/containerized-data-importer name
	for name in operator controller apiserver uploadproxy uploadserver importer cloner; do
		once "$(dir_of cdi)" "cdi-$name" from_module cdi "$module/cmd/cdi-$name" ""
	done
	for name in containerimage-server image-size-detection source-update-poller; do
		once "$(dir_of cdi)" "cdi-$name" from_module cdi "$module/tools/cdi-$name" ""
	done
	once "$(dir_of cdi)" cloner_startup.sh cloner_script
	once "$(dir_of cdi)" manifests from_module cdi ./manifests ""
}

# cloner_script: the script that starts the cloner, as it is in the module.
cloner_script() {
	local dir
	dir=$(cd "$here/cdi" && GOWORK=off GOFLAGS=-mod=readonly go list -m -f '{{.Dir}}' kubevirt.io/containerized-data-importer)
	install -m 0755 "$dir/cmd/cdi-cloner/cloner_startup.sh" "$out/"
}

csi_driver() {
	(cd "$here/../cluster/csi" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly \
		go build -trimpath -tags "$tags" -buildvcs=false -ldflags '-s -w' -o "$out/csi" .)
}

# envtest needs its three binaries in one directory: create hard links.
build_envtest() {
	local dir file
	dir=$(dir_of envtest)
	build etcd
	build_kubernetes kube-apiserver kubectl
	mkdir -p "$dir"
	for file in "$(dir_of etcd)/etcd" "$(dir_of kubernetes)/kube-apiserver" "$(dir_of kubernetes)/kubectl"; do
		[[ -x $dir/${file##*/} ]] || ln -f "$file" "$dir/${file##*/}"
	done
}

build() { # <what>
	case $1 in
	cluster)
		build etcd
		build kubernetes
		build containerd
		build coredns
		build multus
		;;
	envtest) build_envtest ;;
	kubernetes) build_kubernetes kube-apiserver kubectl kube-controller-manager kube-scheduler kube-proxy kubelet ;;
	kubectl | kube-scheduler | kube-controller-manager) build_kubernetes "$1" ;;
	etcd) once "$(dir_of etcd)" etcd etcd_from_module ;;
	containerd) build_containerd ;;
	coredns) once "$(dir_of coredns)" coredns from_module coredns . "" ;;
	multus)
		once "$(dir_of multus)" multus from_module multus gopkg.in/k8snetworkplumbingwg/multus-cni.v4/cmd/multus \
			"-X gopkg.in/k8snetworkplumbingwg/multus-cni.v4/pkg/multus.version=$multus_version"
		;;
	cdi) build_cdi ;;
	csi) build_csi ;;
	csi-driver) once "$(dir_of csi-driver)" csi csi_driver ;;
	kubevirt-virtctl) once "$(dir_of kubevirt-virtctl)" kubevirt-virtctl from_module kubevirt-virtctl . "" ;;
	promtool) once "$(dir_of promtool)" promtool prometheus_from_module promtool ;;
	prometheus) once "$(dir_of prometheus)" prometheus prometheus_from_module prometheus enable_kubernetes_sd ;;
	golangci-lint) once "$(dir_of golangci-lint)" golangci-lint installed "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$golangci_lint_version" ;;
	controller-gen) once "$(dir_of controller-gen)" controller-gen installed "sigs.k8s.io/controller-tools/cmd/controller-gen@$controller_gen_version" ;;
	ginkgo) once "$(dir_of ginkgo)" ginkgo installed "github.com/onsi/ginkgo/v2/ginkgo@$ginkgo_version" ;;
	kustomize) once "$(dir_of kustomize)" kustomize installed "sigs.k8s.io/kustomize/kustomize/v5@$kustomize_version" ;;
	govulncheck) once "$(dir_of govulncheck)" govulncheck installed "golang.org/x/vuln/cmd/govulncheck@$govulncheck_version" ;;
	kwok) once "$(dir_of kwok)" kwok installed "sigs.k8s.io/kwok/cmd/kwok@$kwok_version" ;;
	helm) once "$(dir_of helm)" helm installed "helm.sh/helm/v4/cmd/helm@$helm_version" ;;
	pause) once "$(dir_of pause)" pause project pause ./hack/cluster/pause ;;
	*) usage ;;
	esac
}

[[ $# -gt 0 ]] || usage
if [[ $1 == --path ]]; then
	shift
	for what in "$@"; do dir_of "$what"; done
	exit 0
fi
for what in "$@"; do build "$what"; done
