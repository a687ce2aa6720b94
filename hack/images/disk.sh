# shellcheck shell=bash disable=SC2154 # the sourcing script sets name and work
# Functions that build boot disks as files, without mounting them. A disk has a partition table, a FAT file system from
# which BIOS (syslinux) and EFI (systemd-boot) boot, and optionally a root file system after it.

syslinux_mbr=/usr/lib/syslinux/mbr/mbr.bin
sector=512
# The first partition starts at 1 MiB, as is usual.
first=2048

# boot_partition FILE MIB KERNEL INITRD CMDLINE SYSTEMD-BOOT: creates a FAT file system with both boot loaders.
boot_partition() {
	local file=$1 mib=$2 kernel=$3 initrd=$4 cmdline=$5 loader=$6
	need mkfs.vfat mcopy syslinux
	rm -f "$file"
	# syslinux reads the partition's start from the boot sector (hidden sectors).
	PATH=$PATH:/usr/sbin mkfs.vfat -C -F 32 -s 1 -n BOOT -i 56495245 -h $first "$file" $((mib * 1024)) >/dev/null
	cat >"$work/syslinux.cfg" <<-EOF
		DEFAULT vireo
		PROMPT 0
		TIMEOUT 0
		LABEL vireo
		  LINUX /vmlinuz
		  INITRD /initrd.img
		  APPEND $cmdline
	EOF
	printf 'timeout 0\ndefault vireo.conf\neditor no\n' >"$work/loader.conf"
	cat >"$work/vireo.conf" <<-EOF
		title vireo
		linux /vmlinuz
		initrd /initrd.img
		options $cmdline
	EOF
	MTOOLS_SKIP_CHECK=1
	export MTOOLS_SKIP_CHECK
	mmd -i "$file" ::EFI ::EFI/BOOT ::loader ::loader/entries
	mcopy -i "$file" "$kernel" ::vmlinuz
	mcopy -i "$file" "$initrd" ::initrd.img
	mcopy -i "$file" "$loader" ::EFI/BOOT/BOOTX64.EFI
	mcopy -i "$file" "$work/loader.conf" ::loader/loader.conf
	mcopy -i "$file" "$work/vireo.conf" ::loader/entries/vireo.conf
	mcopy -i "$file" "$work/syslinux.cfg" ::syslinux.cfg
	syslinux --install "$file"
}

# boot_disk OUT.qcow2 BOOT-PARTITION [ROOT-PARTITION]: creates a disk with an MBR and one or two partitions. EFI
# firmware also accepts an MBR, if its system partition has the type EF.
boot_disk() {
	local out=$1 boot=$2 rootfs=${3:-} raw=$work/disk.raw sectors second
	need sfdisk qemu-img
	sectors=$(($(stat -c %s "$boot") / sector))
	second=$((first + sectors))
	{
		echo "label: dos"
		echo "label-id: 0x56495245"
		echo "start=$first, size=$sectors, type=ef, bootable"
		[ -z "$rootfs" ] || echo "start=$second, size=$(($(stat -c %s "$rootfs") / sector)), type=83"
	} >"$work/table"
	rm -f "$raw"
	truncate -s $(((second + first) * sector + $(stat -c %s "${rootfs:-/dev/null}"))) "$raw"
	PATH=$PATH:/usr/sbin:/sbin sfdisk --quiet --no-reread --no-tell-kernel "$raw" <"$work/table"
	dd if="$syslinux_mbr" of="$raw" conv=notrunc status=none
	dd if="$boot" of="$raw" bs=1M seek=$((first * sector / 1048576)) conv=notrunc,sparse status=none
	[ -z "$rootfs" ] || dd if="$rootfs" of="$raw" bs=1M oflag=seek_bytes seek=$((second * sector)) conv=notrunc,sparse status=none
	mkdir -p "$(dirname "$out")"
	qemu-img convert -f raw -O qcow2 -c "$raw" "$out"
	rm -f "$raw"
}
