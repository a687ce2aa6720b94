#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# bench-scale.sh COUNT [NODES] [STEADY]: measures virt-controller and the agents with COUNT VMs on NODES simulated
# nodes, and observes the steady fleet for STEADY, such as 10m. It starts a control plane of its own and removes it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$PWD/.build/scale
rm -rf "$work"
mkdir -p "$work"
hack/tools/build.sh envtest kube-scheduler kube-controller-manager kwok
go build -ldflags '-s -w' -o "$work/controller" ./test/perf/scale/controller
go build -o "$work/scale" ./test/perf/scale
KUBEBUILDER_ASSETS=$(hack/tools/build.sh --path envtest)
export KUBEBUILDER_ASSETS
exec "$work/scale" --count "${1:-500}" --nodes "${2:-0}" --steady "${3:-1m}" --work-dir "$work" --output .bench/scale.json \
	--controller "$work/controller" --kwok "$(hack/tools/build.sh --path kwok)/kwok" --kubernetes "$(hack/tools/build.sh --path kubernetes)"
