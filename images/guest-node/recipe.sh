# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# A Debian with what a node of the local cluster needs, which runs the payload that hack/machine/test.sh gives to it.

. "$repo/hack/images/system.sh"

make_guest() {
	local kernel initrd
	# shellcheck disable=SC2016 # mmdebstrap's shell expands it
	install_debian \
		--customize-hook='chroot "$1" systemctl enable vireo-payload.service' \
		--customize-hook='mkdir "$1/vireo" "$1/results"' \
		--customize-hook='echo machine >"$1/etc/hostname"' \
		--customize-hook='echo "127.0.0.1 localhost machine" >"$1/etc/hosts"'
	say "$name: file system"
	mkdir -p "$made/boot" "$made/disk"
	mv "$kernel" "$made/boot/vmlinuz"
	mv "$initrd" "$made/boot/initrd.img"
	root_filesystem "$made/disk/root.ext4" 16G
}
