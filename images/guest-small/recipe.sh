# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# A Linux with a busybox user space that boots in seconds, as a boot disk and as kernel and initrd.

make_guest() {
	local version kernel packages
	need cpio depmod zstd xz
	mapfile -t packages < <(lines "$recipe/packages")
	unpack "${packages[@]}"
	kernel=$(compgen -G "$all/boot/vmlinuz-*") || die "$name: the kernel package brought no /boot/vmlinuz"
	version=${kernel##*/vmlinuz-}
	say "$name: initrd for Linux $version"
	user_space
	modules "$version"
	mkdir -p "$made/boot"
	(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null --create --format=newc --owner=0:0 --reproducible --quiet) |
		zstd -q -19 -T0 >"$made/boot/initrd.img"
	cp "$kernel" "$made/boot/vmlinuz"
	say "$name: boot disk"
	boot_partition "$work/boot.fat" 48 "$made/boot/vmlinuz" "$made/boot/initrd.img" "$(cat "$base/cmdline")" \
		"$all/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	boot_disk "$made/disk/$name.qcow2" "$work/boot.fat"
}

user_space() {
	local applet
	mkdir -p "$root"/{bin,sbin,usr/bin,usr/sbin,usr/lib/x86_64-linux-gnu,usr/lib64,dev,proc,sys,run,tmp,mnt,root,var/log}
	ln -s usr/lib "$root/lib"
	ln -s usr/lib64 "$root/lib64"
	ln -s ../run "$root/var/run"
	take usr/lib64/ld-linux-x86-64.so.2 usr/lib/x86_64-linux-gnu/libgcc_s.so.1 usr/sbin/qemu-ga
	cp "$all/usr/bin/busybox" "$root/bin/busybox"
	for applet in $("$root/bin/busybox" --list); do
		[ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
	done
	# The kernel runs /sbin/modprobe to load file systems and protocols.
	ln -s ../bin/busybox "$root/sbin/init"
	ln -s ../bin/busybox "$root/sbin/modprobe"
	cp -r "$base/rootfs/." "$root/"
}

# modules VERSION: copies the listed modules and their dependencies, uncompressed, because the whole initrd is
# compressed.
modules() {
	local from=$all/usr/lib/modules/$1 to=$root/usr/lib/modules/$1 module file
	PATH=$PATH:/usr/sbin:/sbin
	depmod -b "$all" "$1" 2>/dev/null
	mkdir -p "$to"
	for module in $(lines "$recipe/modules"); do
		grep -qE "/${module//_/[-_]}\.ko$" "$from/modules.builtin" && continue
		file=$(modprobe -d "$all" -S "$1" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" { print $2 }') ||
			die "$name: Linux $1 has no module $module"
		for file in $file; do
			file=${file#"$all"}
			file=${file#/lib/}
			file=${file#/usr/lib/}
			file=${file#"modules/$1/"}
			mkdir -p "$to/$(dirname "$file")"
			xz -dc "$from/$file" >"$to/${file%.xz}"
		done
	done
	cp "$from/modules.order" "$from/modules.builtin" "$from/modules.builtin.modinfo" "$to/"
	depmod -b "$root" "$1"
	rm -f "$to"/*.bin "$to"/modules.{order,builtin,builtin.modinfo,softdep,devname,weakdep}
}
