#!/usr/bin/env bash
# guest.sh NAME: builds the guest of images/NAME, and prints the path of the directory with its disk/ and boot/ files.
#
# images/NAME/recipe.sh defines make_guest, which creates the files in $made. images/NAME/base may name another guest
# whose files the recipe also uses ($base). The directory is cached under a hash of the recipe. Disk images are
# assembled as files: no loop device, no mount and no /dev/kvm is needed.

. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/debian.sh"
. "$(dirname "$0")/disk.sh"

name=${1:?usage: guest.sh NAME}
recipe=$repo/images/$name
suite=trixie
[ -f "$recipe/recipe.sh" ] || die "no guest has a recipe at images/$name/recipe.sh"

parts=("images/$name")
base=$recipe
if [ -f "$recipe/base" ]; then
	base=$repo/images/$(cat "$recipe/base")
	parts+=("images/$(cat "$recipe/base")")
fi
out=$cache/guests/$name-$(digest "${parts[@]}" hack/images/{guest,debian,disk,system}.sh)
if [ -d "$out" ] && [ -z "${VIREO_REFRESH:-}" ]; then
	echo "$out"
	exit
fi

scratch
all=$work/all
root=$work/root
made=$work/made
mkdir -p "$made" "$cache/guests"

. "$recipe/recipe.sh"
make_guest >&2
rm -rf "$out"
mv "$made" "$out"
say "$name: done, $(du -m "$out" | tail -1 | cut -f1) MB"
echo "$out"
