# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# A complete Debian with cloud-init, guest agent, sshd and python, on one disk that boots with BIOS and EFI.

make_guest() {
	local kernel initrd
	[ "$(id -u)" = 0 ] || die "$name: making a Debian needs root (its files have owners)"
	need mmdebstrap mke2fs
	say "$name: installing Debian (a few minutes)"
	install_debian
	kernel=$(compgen -G "$root/boot/vmlinuz-*") || die "$name: no kernel was installed"
	initrd=$(compgen -G "$root/boot/initrd.img-*") || die "$name: no initrd was made"
	say "$name: boot disk"
	boot_partition "$work/boot.fat" 96 "$kernel" "$initrd" "$(cat "$recipe/cmdline")" \
		"$root/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	rm -f "$kernel" "$initrd"
	PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -L vireo-root -m 1 -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/root.ext4" 3G
	boot_disk "$made/disk/$name.qcow2" "$work/boot.fat" "$work/root.ext4"
}

install_debian() {
	local packages
	mapfile -t packages < <(lines "$recipe/packages")
	sources "$suite" >"$work/sources.list"
	mmdebstrap --variant=minbase --mode=root --quiet --format=directory \
		--aptopt='APT::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
		--include="$(IFS=,; echo "${packages[*]}"),systemd-boot-efi" \
		--essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" && cp '"'$recipe'"'/rootfs/etc/initramfs-tools/conf.d/vireo "$1/etc/initramfs-tools/conf.d/"' \
		--customize-hook='cp -r '"'$recipe'"'/rootfs/etc "$1/"' \
		--customize-hook='chroot "$1" systemctl enable systemd-networkd.service vireo-guest.service ssh.service serial-getty@ttyS0.service' \
		--customize-hook='chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer' \
		--customize-hook='ln -sf ../run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"' \
		--customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id; : >"$1/etc/machine-id"' \
		--customize-hook='echo debian >"$1/etc/hostname"' \
		"$suite" "$root" "$work/sources.list" >"$work/log" 2>&1 || die "$name: mmdebstrap failed: $(tail -15 "$work/log")"
}
