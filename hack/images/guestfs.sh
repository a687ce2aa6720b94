#!/usr/bin/env bash
# guestfs.sh: builds the root file system of images/libguestfs-tools, and prints the path of its tar archive.
#
# Unlike those of the components, it is a complete Debian: libguestfs consists of many programs, and supermin, which
# builds the small Linux that accesses disks (the appliance), queries dpkg. The appliance is built here, because users
# of the image cannot write to it. The archive is cached under a hash of the recipe. VIREO_REFRESH=1 builds it again
# with the current packages.

. "$(dirname "$0")/env.sh"
. "$(dirname "$0")/debian.sh"

name=libguestfs-tools
recipe=images/$name
suite=trixie
# The path of the appliance in KubeVirt's image too. virtctl sets it in the Pod.
appliance=/usr/local/lib/guestfs/appliance
out=$cache/rootfs/$name-$(digest "$recipe" hack/images/guestfs.sh hack/images/debian.sh).tar

if [ -f "$out" ] && [ -z "${VIREO_REFRESH:-}" ]; then
	echo "$out"
	exit
fi

need mmdebstrap tar
scratch
mkdir -p "$cache/rootfs" "$work/root"
mapfile -t packages < <(lines "$repo/$recipe/packages")
sources "$suite" >"$work/sources.list"

# Runs in the new root. README.fixed marks an appliance that libguestfs does not have to build.
cat >"$work/finish" <<FINISH
set -e
mkdir -p $appliance
supermin --build -f ext2 --size 512M --host-cpu x86_64 --copy-kernel -o $appliance.new /usr/lib/x86_64-linux-gnu/guestfs/supermin.d
mv $appliance.new/* $appliance/
touch $appliance/README.fixed
chmod -R a+rX $appliance
rm -rf $appliance.new /boot/* /usr/lib/modules /usr/lib/x86_64-linux-gnu/guestfs/supermin.d /var/cache/* /usr/share/man /usr/share/locale /usr/share/info
find /usr/share/doc -type f ! -name copyright -delete
FINISH
say "$name: installing Debian packages and making the appliance, which takes some minutes"
mmdebstrap --variant=minbase --quiet --format=tar \
	--aptopt='APT::Install-Recommends "false"' \
	--include="$(IFS=,; echo "${packages[*]}")" \
	--customize-hook="cp '$work/finish' \"\$1\"/finish && chroot \"\$1\" sh /finish && rm \"\$1\"/finish" \
	--customize-hook="cp -r '$repo/$recipe/rootfs/.' \"\$1\"/" \
	"$suite" "$work/all.tar" "$work/sources.list" >"$work/log" 2>&1 ||
	die "$name: mmdebstrap failed: $(tail -5 "$work/log")"
tar -C "$work/root" --exclude='./dev/*' -xpf "$work/all.tar"
tar -C "$work/root" --sort=name --numeric-owner --mtime=@0 --format=gnu -cf "$work/out.tar" .
mv "$work/out.tar" "$out"
say "$name: root file system of $(du -m "$out" | cut -f1) MB"
echo "$out"
