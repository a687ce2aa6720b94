#!/usr/bin/env bash
# rootfs.sh NAME: makes the root file system of images/NAME from Debian packages, and prints the path of its tar.
#
# images/NAME/packages lists Debian packages, images/NAME/keep the files that stay (globs; ELF files bring their shared
# libraries), images/NAME/rootfs/ the files of our own. The tar is kept in the cache under a hash of these, so it is made
# once; VIREO_REFRESH=1 makes it again with the packages of today. Packages are only unpacked: no script of theirs runs.

. "$(dirname "$0")/env.sh"

name=${1:?usage: rootfs.sh NAME}
recipe=images/$name
suite=trixie
[ -f "$repo/$recipe/packages" ] || die "no image has a root file system recipe at $recipe/packages"

out=$cache/rootfs/$name-$(digest "$recipe" hack/images/rootfs.sh).tar
if [ -f "$out" ] && [ -z "${VIREO_REFRESH:-}" ]; then
	echo "$out"
	exit
fi

need mmdebstrap objdump tar
scratch
all=$work/all
root=$work/root
mkdir -p "$all" "$root" "$cache/rootfs"

lines() {
	sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1"
}

unpack() {
	say "$name: unpacking Debian packages"
	sources "$suite" >"$work/sources.list"
	mmdebstrap --variant=extract --quiet --format=tar \
		--aptopt='APT::Install-Recommends "false"' \
		--setup-hook='mkdir -p "$1"/usr/bin "$1"/usr/sbin "$1"/usr/lib "$1"/usr/lib64' \
		--setup-hook='for d in bin sbin lib lib64; do ln -s usr/$d "$1"/$d; done' \
		--customize-hook='cp "$1"/var/lib/dpkg/status "$1"/dpkg-status 2>/dev/null || true' \
		--include="$(lines "$repo/$recipe/packages" | paste -sd,)" \
		"$suite" "$work/all.tar" "$work/sources.list" >"$work/log" 2>&1 ||
		die "$name: mmdebstrap failed: $(tail -5 "$work/log")"
	tar -C "$all" --no-same-owner --exclude='./dev/*' -xf "$work/all.tar"
	rm "$work/all.tar"
}

# take FILE...: copies files (paths from the root) into the new root, and follows symlinks and NEEDED libraries.
declare -A taken
take() {
	local queue=("$@") file target lib
	while [ ${#queue[@]} -gt 0 ]; do
		file=${queue[0]}
		queue=("${queue[@]:1}")
		[ -z "${taken[$file]:-}" ] || continue
		taken[$file]=1
		if [ -d "$all/$file" ] && [ ! -L "$all/$file" ]; then
			mapfile -t -O ${#queue[@]} queue < <(cd "$all" && find "$file" -mindepth 1 -maxdepth 1)
			continue
		fi
		mkdir -p "$root/$(dirname "$file")"
		cp -dp "$all/$file" "$root/$file"
		if [ -L "$all/$file" ]; then
			target=$(readlink "$all/$file")
			case $target in
			/*) target=${target#/} ;;
			*) target=$(realpath -ms --relative-to="$all" "$all/$(dirname "$file")/$target") ;;
			esac
			queue+=("$target")
			continue
		fi
		[ "$(head -c4 "$all/$file" | tr -d '\0')" = $'\x7fELF' ] || continue
		for lib in $(objdump -p "$all/$file" | awk '$1 == "NEEDED" { print $2 }'); do
			queue+=("$(library "$lib" "$file")")
		done
	done
}

# library SONAME USER: where the loader would find it.
library() {
	local dir
	for dir in usr/lib/x86_64-linux-gnu usr/lib64 "$(dirname "$2")" usr/lib/x86_64-linux-gnu/*/; do
		if [ -e "$all/${dir%/}/$1" ]; then
			echo "${dir%/}/$1"
			return
		fi
	done
	die "$name: $2 needs $1, which no package brought"
}

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
	# The packages' licences travel with their files.
	(cd "$all" && find usr/share/doc -mindepth 2 -maxdepth 2 -name copyright -exec cp --parents -p {} "$root" \;)
	mkdir -p "$root"/{dev,proc,sys,run,tmp,var/tmp,etc}
	ln -s ../run "$root/var/run"
	cp -r "$repo/$recipe/rootfs/." "$root/"
	chmod -R u=rwX,go=rX "$root/etc"
	chmod 1777 "$root/tmp" "$root/var/tmp"
}

unpack
assemble
tar -C "$root" --sort=name --numeric-owner --owner=0 --group=0 --mtime=@0 --format=gnu -cf "$work/out.tar" .
mv "$work/out.tar" "$out"
say "$name: root file system of $(du -m "$out" | cut -f1) MB"
echo "$out"
