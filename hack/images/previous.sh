#!/usr/bin/env bash
# previous.sh: builds the contents of the image of the previous launcher, and prints the path of their directory:
# Vireo's programs in it (bin/virt-launcher and others), the path of its root file system (rootfs) and its commit
# (commit).
#
# The previous launcher is the one before the last commit that changed its programs or its root file system. It is built
# from the sources and the recipe of that commit, once. A clone without that history, or whose previous launcher lacks a
# program that virt-controller needs, gets the current launcher under another name.

. "$(dirname "$0")/env.sh"

# builds COMMIT: builds the directory of a commit if it does not exist, and prints its path.
builds() {
	local out=$cache/launchers/$1-programs tree=$work/tree-$1
	if [ ! -f "$out/commit" ]; then
		say "virt-launcher of ${1:0:12}: building"
		mkdir -p "$tree" "$out/bin"
		git -C "$repo" -c tar.umask=0022 archive "$1" | tar -C "$tree" -x
		build "$tree" "$out/bin"
		"$tree/hack/images/rootfs.sh" virt-launcher >"$out/rootfs"
		echo "$1" >"$out/commit"
	fi
	echo "$out"
}

# The commands in the image.
programs='virt-launcher virt-tail virt-freezer'

# build TREE FOLDER: builds the programs reproducibly, independent of the path of the sources.
build() {
	local name
	for name in $programs; do
		(cd "$1" && CGO_ENABLED=0 go build -trimpath -tags netgo,osusergo -buildvcs=false -ldflags '-s -w' -o "$2/$name" "./cmd/$name") >&2 ||
			die "virt-launcher: go build of $name in $1 failed"
	done
}

# complete COMMIT: succeeds if the commit has all programs.
complete() {
	local name
	for name in $programs; do
		git -C "$repo" cat-file -e "$1:cmd/$name" 2>/dev/null || return 1
	done
}

# sources: prints the sources of the launcher.
sources() {
	# shellcheck disable=SC2046,SC2086 # one word for each program
	(cd "$repo" && go list -deps -f '{{if and .Module .Module.Main}}{{.Dir}}{{end}}' $(printf './cmd/%s ' $programs))
	echo "$repo/images/virt-launcher"
}

scratch
mapfile -t paths < <(sources)
today=$work/today
mkdir -p "$today/bin"
build "$repo" "$today/bin"
"$repo/hack/images/rootfs.sh" virt-launcher >"$today/rootfs"
echo 'the present one' >"$today/commit"
for change in $(git -C "$repo" log -10 --format=%H -- "${paths[@]}" ':(exclude)*_test.go' 2>/dev/null || true); do
	before=$(git -C "$repo" rev-parse --verify --quiet "$change^") || break
	complete "$before" || break
	made=$(builds "$before")
	if ! diff -rq "$made/bin" "$today/bin" >/dev/null || ! cmp -s "$made/rootfs" "$today/rootfs"; then
		echo "$made"
		exit
	fi
done
say "virt-launcher: this clone's history has no other one that can run, so the previous one is the present one"
made=$cache/launchers/present
rm -rf "$made"
mkdir -p "${made%/*}"
mv "$today" "$made"
echo "$made"
