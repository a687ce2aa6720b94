# shellcheck shell=bash disable=SC2154 # the sourcing script sets name, suite, all, root and work
# Functions that copy files from Debian packages, for the scripts that build root file systems. They source this file
# after env.sh.

# lines FILE: prints the lines of a file, without comments and empty lines.
lines() {
	sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1"
}

# The command that stores the control file of each package where scanners and hack/sbom read it: mmdebstrap's hooks have
# the root in $1.
# shellcheck disable=SC2016 # mmdebstrap's shell expands it
record_packages='mkdir -p "$1/var/lib/dpkg/status.d" && for deb in "$1"/var/cache/apt/archives/*.deb; do
	dpkg-deb -f "$deb" >"$1/var/lib/dpkg/status.d/$(dpkg-deb -f "$deb" Package)"
done'

# unpack PACKAGE...: unpacks Debian packages and their dependencies into $all, without running maintainer scripts.
unpack() {
	say "$name: unpacking Debian packages"
	mkdir -p "$all" "$root"
	sources "$suite" >"$work/sources.list"
	mmdebstrap --variant=extract --quiet --format=tar \
		--aptopt='APT::Install-Recommends "false"' \
		--setup-hook='mkdir -p "$1"/usr/bin "$1"/usr/sbin "$1"/usr/lib "$1"/usr/lib64' \
		--setup-hook='for d in bin sbin lib lib64; do ln -s usr/$d "$1"/$d; done' \
		--extract-hook="$record_packages" \
		--include="$(IFS=,; echo "$*")" \
		"$suite" "$work/all.tar" "$work/sources.list" >"$work/log" 2>&1 ||
		die "$name: mmdebstrap failed: $(tail -5 "$work/log")"
	tar -C "$all" --no-same-owner --exclude='./dev/*' -xf "$work/all.tar"
	rm "$work/all.tar"
}

# take FILE...: copies files from $all into $root, with the targets of symbolic links and the shared libraries that they
# need. Paths are relative to the root.
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

# library SONAME FILE: prints the path at which the dynamic loader finds a shared library of a file.
library() {
	local dir
	for dir in usr/lib/x86_64-linux-gnu usr/lib64 "$(dirname "$2")" $(runpath "$2"); do
		if [ -e "$all/${dir%/}/$1" ]; then
			echo "${dir%/}/$1"
			return
		fi
	done
	die "$name: $2 needs $1, which no package brought"
}

# runpath FILE: prints the directories, relative to the root, in the RPATH or RUNPATH of an ELF file.
runpath() {
	objdump -p "$all/$1" | awk '$1 == "RUNPATH" || $1 == "RPATH" { print $2 }' | tr : '\n' | sed -n 's#^/##p'
}
