# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables
# Functions that install a complete Debian, for the recipes of guests that boot one. They source this file.

# install_debian ARGUMENT...: installs the packages of the recipe in $root, and copies the recipe's rootfs into it. The
# arguments are passed to mmdebstrap.
install_debian() {
	local packages
	[ "$(id -u)" = 0 ] || die "$name: making a Debian needs root (its files have owners)"
	need mmdebstrap mke2fs
	say "$name: installing Debian (a few minutes)"
	mapfile -t packages < <(lines "$recipe/packages")
	sources "$suite" >"$work/sources.list"
	mmdebstrap --variant=minbase --mode=root --quiet --format=directory \
		--aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--include="$(IFS=,; echo "${packages[*]}")" \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" && cp '"'$recipe'"'/rootfs/etc/initramfs-tools/conf.d/vireo "$1/etc/initramfs-tools/conf.d/"' \
		--customize-hook='cp -r '"'$recipe'"'/rootfs/etc "$1/"' \
		--customize-hook='chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer' \
		--customize-hook='rm -f "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id; : >"$1/etc/machine-id"' \
		"$@" "$suite" "$root" "$work/sources.list" >"$work/log" 2>&1 || die "$name: mmdebstrap failed: $(tail -15 "$work/log")"
	kernel=$(compgen -G "$root/boot/vmlinuz-*") || die "$name: no kernel was installed"
	initrd=$(compgen -G "$root/boot/initrd.img-*") || die "$name: no initrd was made"
}

# root_filesystem FILE SIZE: makes an ext4 file system of the files in $root.
root_filesystem() {
	PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -L vireo-root -m 1 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$1" "$2"
}
