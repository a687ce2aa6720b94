#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# release.sh VERSION: puts a release together in dist/VERSION: the images as OCI archives, the Helm chart, the
# installer, virtctl for six platforms, a software bill of materials for each of them, and checksums of all.
# IMG_REGISTRY is the registry that chart and installer name. Two runs on one commit give the same files, as long as the
# cached root file systems are the same. The image of virtctl guestfs, a complete Debian, is the largest; GUESTFS=0
# leaves it out.
set -euo pipefail

version=${1:?usage: release.sh VERSION}
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || {
	echo "release: $version is no version such as v1.2.3" >&2
	exit 1
}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -z "$(git status --porcelain)" ] || {
	echo "release: the files differ from HEAD: commit or remove the changes" >&2
	exit 1
}
umask 022
. hack/images/env.sh
need buildah tar gzip sha256sum
components=(virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver)
[ "${GUESTFS:-1}" = 0 ] || components+=(libguestfs-tools)
registry=${IMG_REGISTRY:-localhost/vireo}
out=$repo/dist/$version
seconds=$(git log -1 --format=%ct)
created=$(date -u -d "@$seconds" +%Y-%m-%dT%H:%M:%SZ)
scratch # $work, which is removed at the end
rm -rf "$out"
mkdir -p "$out"

# pack DIRECTORY MEMBER...: writes a tar archive that depends on the files' contents and modes only.
pack() {
	local directory=$1
	shift
	tar -C "$directory" --sort=name --numeric-owner --owner=0 --group=0 --mtime="@$seconds" --format=gnu -cf - "$@"
}

images() {
	local name
	make build VERSION="$version"
	TAG=$version hack/images/build.sh "${components[@]}"
	for name in "${components[@]}"; do
		say "$name: writing the OCI archive"
		builder pull --quiet "docker-archive:.build/images/$name.tar" >/dev/null
		builder push --quiet --format oci "localhost/vireo/$name:$version" "oci:$work/$name:$version"
		(cd "$work/$name" && pack . -- *) >"$out/$name-$version.oci.tar"
	done
}

chart() {
	cp -r charts/vireo "$work/vireo"
	sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$work/vireo/Chart.yaml"
	sed -i "s#^  registry: .*#  registry: $registry#" "$work/vireo/values.yaml"
	pack "$work" vireo | gzip -n9 >"$out/vireo-chart-${version#v}.tgz"
}

clients() {
	local os arch suffix
	hack/web-assets.sh
	for os in linux darwin windows; do
		suffix=
		[ $os != windows ] || suffix=.exe
		for arch in amd64 arm64; do
			say "virtctl: building for $os on $arch"
			CGO_ENABLED=0 GOOS=$os GOARCH=$arch go build -trimpath -tags netgo,osusergo \
				-ldflags "-s -w -X github.com/vireo-project/vireo/internal/component/version.Version=$version" \
				-o "$out/virtctl-$version-$os-$arch$suffix" ./cmd/virtctl
		done
	done
}

# bill NAME FILE...: writes the bill of materials of files.
bill() {
	local name=$1
	shift
	"$work/sbom" -name "$name" -version "$version" -created "$created" "$@" >"$out/$name-$version.spdx.json"
}

bills() {
	go build -o "$work/sbom" ./hack/sbom
	bill virt-controller bin/virt-controller
	bill virt-api bin/virt-api
	bill virt-handler bin/virt-handler .build/rootfs/virt-handler.tar
	bill virt-broker bin/virt-broker bin/virt-network-broker bin/virt-device-plugin
	bill virt-launcher bin/virt-launcher bin/virt-tail bin/virt-freezer .build/rootfs/virt-launcher.tar
	bill virt-exportproxy bin/virt-exportproxy
	bill virt-exportserver bin/virt-exportserver
	[ "${GUESTFS:-1}" = 0 ] || bill libguestfs-tools .build/rootfs/libguestfs-tools.tar
	bill virtctl "$out"/virtctl-"$version"-*
}

images
chart
IMG_REGISTRY=$registry TAG=$version hack/installer.sh "$out/install.yaml"
clients
bills
(cd "$out" && sha256sum -- * >SHA256SUMS)
say "the release is in ${out#"$repo"/}"
