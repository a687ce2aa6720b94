# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# A complete Debian with cloud-init, guest agent, sshd and python, on one disk that boots with BIOS and EFI.

. "$repo/hack/images/system.sh"

make_guest() {
	local kernel initrd
	# shellcheck disable=SC2016 # mmdebstrap's shell expands it
	install_debian \
		--customize-hook='chroot "$1" systemctl enable systemd-networkd.service vireo-guest.service ssh.service serial-getty@ttyS0.service' \
		--customize-hook='ln -sf ../run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"' \
		--customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' \
		--customize-hook='echo debian >"$1/etc/hostname"'
	say "$name: boot disk"
	boot_partition "$work/boot.fat" 96 "$kernel" "$initrd" "$(cat "$recipe/cmdline")" \
		"$root/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	rm -f "$kernel" "$initrd"
	root_filesystem "$work/root.ext4" 3G
	boot_disk "$made/disk/$name.qcow2" "$work/boot.fat" "$work/root.ext4"
}
