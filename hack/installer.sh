#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# installer.sh FILE: writes all manifests to one YAML file, with the images of IMG_REGISTRY and TAG.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:?usage: installer.sh FILE}
prefix=${IMG_REGISTRY:-localhost/vireo}
mkdir -p "$(dirname "$out")"
bin/kubectl kustomize config/default |
	sed -E "s#localhost/vireo/(virt-[a-z]+|libguestfs-tools):dev#${prefix}/\1:${TAG:-dev}#g" >"$out.part"
mv "$out.part" "$out"
