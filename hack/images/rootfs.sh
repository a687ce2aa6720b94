#!/usr/bin/env bash
# rootfs.sh NAME: builds the root file system of images/NAME from Debian packages, and prints the path of its tar
# archive. rootfs.sh --unpacked NAME: also unpacks the archive, for tests that run its programs, and prints the path of
# that directory.
#
# In images/NAME, packages lists the Debian packages, keep the globs of the files that are copied from them (with the
# shared libraries that they need), and rootfs/ contains additional files. If finish.sh exists, its function finish
# changes the new root.
#
# The archive is cached under a hash of all these files. VIREO_REFRESH=1 builds it again with the current packages.
# Packages are only unpacked; their maintainer scripts do not run.

. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/debian.sh"

unpacked=
if [ "${1:-}" = --unpacked ]; then
	unpacked=1
	shift
fi
name=${1:?usage: rootfs.sh [--unpacked] NAME}
recipe=images/$name
suite=trixie
[ -f "$repo/$recipe/packages" ] || die "no image has a root file system recipe at $recipe/packages"

out=$cache/rootfs/$name-$(digest "$recipe" hack/images/rootfs.sh hack/images/debian.sh).tar

# result: prints the path of the archive, or with --unpacked that of the directory.
result() {
	local folder=${out%.tar}
	if [ -z "$unpacked" ]; then
		echo "$out"
		return
	fi
	if [ ! -d "$folder" ] || [ "$out" -nt "$folder" ]; then
		rm -rf "$folder" "$folder.new"
		mkdir -p "$folder.new"
		tar -C "$folder.new" --numeric-owner -xpf "$out"
		touch "$folder.new"
		mv "$folder.new" "$folder"
	fi
	echo "$folder"
}

if [ -f "$out" ] && [ -z "${VIREO_REFRESH:-}" ]; then
	result
	exit
fi

need mmdebstrap objdump tar
scratch
all=$work/all
root=$work/root
mkdir -p "$cache/rootfs"

assemble() {
	local pattern matches dir
	say "$name: assembling the root file system"
	for dir in bin sbin lib lib64; do
		mkdir -p "$root/usr/$dir"
		ln -s "usr/$dir" "$root/$dir"
	done
	while read -r pattern; do
		matches=()
		mapfile -t matches < <(cd "$all" && compgen -G "$pattern" || true)
		[ ${#matches[@]} -gt 0 ] || die "$recipe/keep: $pattern matches no file of the packages"
		take "${matches[@]}"
	done < <(lines "$repo/$recipe/keep")
	# The list of the packages, for scanners, and their licenses.
	mkdir -p "$root/var/lib/dpkg"
	cp -r "$all/var/lib/dpkg/status.d" "$root/var/lib/dpkg/"
	(cd "$all" && find usr/share/doc -mindepth 2 -maxdepth 2 -name copyright -exec cp --parents -p {} "$root" \;)
	mkdir -p "$root"/{dev,proc,sys,run,tmp,var/tmp,etc}
	ln -s ../run "$root/var/run"
	cp -r "$repo/$recipe/rootfs/." "$root/"
	chmod -R u=rwX,go=rX "$root/etc"
	chmod 1777 "$root/tmp" "$root/var/tmp"
}

mapfile -t packages < <(lines "$repo/$recipe/packages")
unpack "${packages[@]}"
assemble
if [ -f "$repo/$recipe/finish.sh" ]; then
	. "$repo/$recipe/finish.sh"
	finish
fi
tar -C "$root" --sort=name --numeric-owner --owner=0 --group=0 --mtime=@0 --format=gnu -cf "$work/out.tar" .
mv "$work/out.tar" "$out"
say "$name: root file system of $(du -m "$out" | cut -f1) MB"
result
