#!/usr/bin/env bash
# build.sh [--prepare | --push REGISTRY] [NAME...]: builds container images by the Dockerfile's targets.
#
# Each image becomes .build/images/NAME.tar, a docker-archive named localhost/vireo/NAME:$TAG (TAG is dev by default).
# An image whose inputs have not changed is not built again. Default names: the components and the small guest.
#   --prepare        only prepare the files that the Dockerfile adds (then: docker build --target NAME .)
#   --push REGISTRY  also push as REGISTRY/NAME:$TAG
# Binaries are taken from bin/, and built if they do not exist.

. "$(dirname "$0")/env.sh"

tag=${TAG:-dev}
prefix=localhost/vireo
push='' prepare=''
names=()
while [ $# -gt 0 ]; do
	case $1 in
	--push)
		push=${2:?--push needs a registry}
		shift
		;;
	--prepare) prepare=1 ;;
	-h | --help)
		sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
		exit
		;;
	-*) die "unknown flag $1" ;;
	*) names+=("$1") ;;
	esac
	shift
done
[ ${#names[@]} -gt 0 ] || names=(virt-controller virt-api virt-handler virt-broker virt-launcher virt-exportproxy virt-exportserver guest-small guest-small-kernel)

images=$context/images
mkdir -p "$images" "$context/rootfs" "$context/guests" "$cache"
# Allow one build at a time per clone, because all write the same archives.
exec 9>"$context/lock"
flock 9

# place FILE TARGET: links FILE to TARGET in the build context, or copies it if the file system requires that.
place() {
	[ "$1" -ef "$2" ] && return
	mkdir -p "$(dirname "$2")"
	if ! ln -f "$1" "$2" 2>/dev/null; then
		cp "$1" "$2.part"
		mv "$2.part" "$2"
	fi
}

binary() {
	local tags=netgo,osusergo
	[ -x "$repo/bin/$1" ] && return
	[ "$1" != virt-device-plugin ] || tags+=,grpcnotrace # see the Makefile
	say "$1: bin/$1 is not there, building it"
	(cd "$repo" && CGO_ENABLED=1 go build -trimpath -tags "$tags" -ldflags '-s -w' -o "bin/$1" "./cmd/$1") ||
		die "$1: go build ./cmd/$1 failed"
}

# programs NAME: prints Vireo's commands in an image.
programs() {
	echo "$1"
	case $1 in
	virt-launcher) echo virt-tail virt-freezer ;;
	virt-broker) echo virt-network-broker virt-device-plugin ;;
	esac
}

# importer_programs NAME: prints the programs in an image of the importer.
importer_programs() {
	echo "$1"
	case $1 in
	cdi-importer) echo cdi-containerimage-server cdi-image-size-detection cdi-source-update-poller ;;
	cdi-cloner) echo cloner_startup.sh ;;
	esac
}

# prepare NAME: creates the files that the Dockerfile's target adds, and prints their paths.
inputs() {
	local made part
	case $1 in
	virt-controller | virt-api | virt-broker | virt-exportproxy | virt-exportserver)
		for part in $(programs "$1"); do
			binary "$part" >&2
			echo "bin/$part"
		done
		echo "images/$1/rootfs"
		;;
	test-tools)
		[ -x "$repo/bin/test-tools" ] || die "$1: bin/test-tools is not there: make build"
		echo bin/test-tools
		;;
	virt-handler | virt-launcher)
		for part in $(programs "$1"); do
			binary "$part" >&2
			echo "bin/$part"
		done
		made=$("$repo/hack/images/rootfs.sh" "$1")
		place "$made" "$context/rootfs/$1.tar"
		echo "=$made"
		;;
	virt-launcher-previous)
		made=$("$repo/hack/images/previous.sh")
		rm -rf "$context/previous/usr/bin"
		for part in "$made"/bin/*; do
			place "$part" "$context/previous/usr/bin/${part##*/}"
		done
		place "$made/commit" "$context/previous/usr/share/vireo/launcher-commit"
		made=$(cat "$made/rootfs")
		place "$made" "$context/rootfs/$1.tar"
		echo .build/previous
		echo "=$made"
		;;
	libguestfs-tools)
		made=$("$repo/hack/images/guestfs.sh")
		[ -f "$made" ] || die "$1: its root file system was not made"
		place "$made" "$context/rootfs/$1.tar"
		echo "=$made"
		;;
	cdi-*)
		made=$("$repo/hack/images/rootfs.sh" cdi)
		place "$made" "$context/rootfs/cdi.tar"
		echo "=$made"
		"$repo/hack/tools/build.sh" cdi
		made=$("$repo/hack/tools/build.sh" --path cdi)
		for part in $(importer_programs "$1"); do
			place "$made/$part" "$context/cdi/$part"
		done
		echo "=$made"
		;;
	guest-*)
		made=$("$repo/hack/images/guest.sh" "${1%-kernel}")
		[ -d "$made" ] || die "$1: its guest was not made"
		for part in $(cd "$made" && find . -type f); do
			place "$made/$part" "$context/guests/${1%-kernel}/${part#./}"
		done
		echo "=$made"
		;;
	*) die "no image is called $1" ;;
	esac
}

# fingerprint NAME INPUT...: prints a hash of everything that the image depends on. A path after "=" has its hash in its
# name already.
fingerprint() {
	local name=$1 input
	shift
	{
		echo "$prefix/$name:$tag"
		sha256sum <"$repo/Dockerfile"
		for input; do
			case $input in
			=*) echo "$input" ;;
			*) digest "$input" ;;
			esac
		done
	} | sha256sum | cut -d' ' -f1
}

build() {
	local name=$1 list stamp archive=$images/$1.tar ref=$prefix/$1:$tag made
	list=$(inputs "$name")
	[ -z "$prepare" ] || return 0
	mapfile -t made <<<"$list"
	stamp=$(fingerprint "$name" "${made[@]}")
	if [ ! -f "$archive" ] || [ "$(cat "$archive.inputs" 2>/dev/null)" != "$stamp" ]; then
		need buildah
		say "$name: building"
		rm -f "$archive.inputs" "$archive.part"
		builder bud --isolation chroot --layers --timestamp 0 --quiet --target "$name" --tag "$ref" "$repo" >/dev/null ||
			die "$name: buildah failed"
		builder push --quiet "$ref" "docker-archive:$archive.part:$ref" || die "$name: cannot write $archive"
		mv "$archive.part" "$archive"
		sizes "$archive" >"$archive.sizes"
		echo "$stamp" >"$archive.inputs"
		builder rmi --prune >/dev/null 2>&1 || true
	fi
	[ -z "$push" ] || upload "$name"
}

# sizes ARCHIVE: prints the compressed size, as in a registry, and the uncompressed size in bytes. Sizes of layers are
# cached by digest.
sizes() {
	local layer known packed=0 unpacked=0
	mkdir -p "$cache/sizes"
	for layer in $(tar -xOf "$1" manifest.json | grep -oE '[0-9a-f]{64}\.tar'); do
		known=$cache/sizes/$layer
		if [ ! -s "$known" ]; then
			tar -xOf "$1" "$layer" | tee >(wc -c >"$known.unpacked") | gzip_all | wc -c >"$known.packed"
			# tee's other reader may finish a moment later.
			while [ ! -s "$known.unpacked" ]; do sleep 0.01; done
			paste -d' ' "$known.packed" "$known.unpacked" >"$known.part"
			mv "$known.part" "$known"
			rm -f "$known.packed" "$known.unpacked"
		fi
		read -r p u <"$known"
		packed=$((packed + p)) unpacked=$((unpacked + u))
	done
	echo "$packed $unpacked"
}

gzip_all() {
	if command -v pigz >/dev/null; then pigz; else gzip; fi
}

upload() {
	say "$1: pushing to $push/$1:$tag"
	builder inspect --type image "$prefix/$1:$tag" >/dev/null 2>&1 ||
		builder pull --quiet "docker-archive:$images/$1.tar" >/dev/null
	builder push --quiet ${PUSH_FLAGS:-} "$prefix/$1:$tag" "docker://$push/$1:$tag" || die "$1: push to $push failed"
}

table() {
	local name packed unpacked
	printf '%-42s %14s %14s\n' IMAGE COMPRESSED UNPACKED
	for name; do
		read -r packed unpacked <"$images/$name.tar.sizes"
		awk -v n="$prefix/$name:$tag" -v p="$packed" -v u="$unpacked" \
			'BEGIN { printf "%-42s %11.1f MB %11.1f MB\n", n, p / 1e6, u / 1e6 }'
	done
}

for name in "${names[@]}"; do
	build "$name"
done
[ -n "$prepare" ] || table "${names[@]}"
