# shellcheck shell=bash
# Settings and functions that the image scripts share; they source this file.

set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${VIREO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vireo}
context=$repo/.build

die() {
	echo "images: $*" >&2
	exit 1
}

say() {
	echo "images: $*" >&2
}

# need COMMAND...: exits with the packages to install if a command is missing.
need() {
	local missing=() c
	for c; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$c" >/dev/null || missing+=("$c")
	done
	[ ${#missing[@]} -eq 0 ] ||
		die "missing: ${missing[*]}. Install what hack/images/packages.txt lists: apt-get install --no-install-recommends \$(grep -v '^#' hack/images/packages.txt)"
}

# builder ARG...: runs buildah with a separate storage. The vfs driver mounts nothing, so that a killed build leaves no
# mounts.
builder() {
	buildah --storage-driver vfs --root "$cache/buildah" --runroot "$cache/buildah-run" "$@"
}

# mirrors: sets the Debian archives, without a trailing slash: VIREO_DEBIAN_MIRROR and VIREO_DEBIAN_SECURITY_MIRROR, or
# those that the local apt uses. No other host is contacted.
mirror() {
	local set=$1 suite=$2
	if [ -n "$set" ]; then
		echo "${set%/}"
		return
	fi
	# shellcheck disable=SC2016 # apt expands these, not the shell
	apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' |
		awk -v s="$suite" '$3 == "main" && $2 ~ s { sub("/$", "", $1); print $1; exit }'
}

# sources SUITE: prints the apt source lines of a Debian suite with its updates and security fixes.
sources() {
	local suite=$1 main security
	main=$(mirror "${VIREO_DEBIAN_MIRROR:-}" '^[a-z]+$')
	security=$(mirror "${VIREO_DEBIAN_SECURITY_MIRROR:-}" '-security$')
	[ -n "$main" ] || die "apt on this machine names no Debian archive: set VIREO_DEBIAN_MIRROR to one"
	echo "deb $main $suite main"
	echo "deb $main $suite-updates main"
	[ -z "$security" ] || echo "deb $security $suite-security main"
}

# digest PATH...: prints a hash of the names and contents of files and directories, which does not depend on the clone's
# path.
digest() {
	(cd "$repo" && find "$@" -type f -printf '%m %p\n' | LC_ALL=C sort | while read -r mode file; do
		echo "$mode $file $(sha256sum <"$file")"
	done) | sha256sum | cut -c1-16
}

# scratch: creates a directory that is removed when the script exits. It is on the cache's file system, so that a
# finished file can be renamed into the cache.
scratch() {
	mkdir -p "$cache/tmp"
	# Remove those of killed runs, whose process does not exist any more.
	local old
	for old in "$cache"/tmp/*.*; do
		[ -e "$old" ] || continue
		kill -0 "${old##*.}" 2>/dev/null || rm -rf "$old"
	done
	work=$(mktemp -d "$cache/tmp/XXXXXX")
	mv "$work" "$work.$$"
	work=$work.$$
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM HUP
}
