# shellcheck shell=bash disable=SC2154 # hack/images/rootfs.sh sets the variables and runs finish

finish() {
	# swtpm_setup needs /tmp. The Pod's root file system is read-only, but the volume at /run/libvirt is not.
	rmdir "$root/tmp"
	ln -s run/libvirt/tmp "$root/tmp"
	# libvirt creates the lock of a guest's console at this path, which is compiled in.
	ln -s ../run/libvirt/lock "$root/var/lock"
	capabilities
}

# capabilities: stores libvirt's cache of QEMU's capabilities in the image, for which libvirt has to start QEMU. With
# the cache, a VM's libvirtd responds to its first connection about half a second earlier and needs 6 MB less. libvirt
# compares the change times of QEMU's and of its own files with those in the cache. They are placeholders here, which
# virt-launcher replaces. The cache is valid only for Pods without /dev/kvm: if KVM is usable, libvirt ignores it and
# starts QEMU.
capabilities() {
	local target=$root/usr/share/vireo/libvirt/capabilities.xml probe=$work/capabilities.xml
	if [ "$(id -u)" != 0 ]; then
		say "$name: not root, so QEMU's capabilities are not kept in the image (VMs start a little slower)"
		return
	fi
	need unshare chroot
	root=$root probe=$probe unshare --mount --pid --net --ipc --fork --kill-child bash -c "$(declare -f probe_qemu); probe_qemu" \
		>"$work/probe.log" 2>&1 || die "$name: libvirtd does not start in the new root: $(tail -5 "$work/probe.log")"
	# All files in the image have a modification time in 1970, so that libvirt finds none for the directory of modules.
	sed -e '/<qemumoddirmtime>/d' -e 's#<qemuctime>[0-9]*<#<qemuctime>@QEMU_CTIME@<#' -e 's#<selfctime>[0-9]*<#<selfctime>@SELF_CTIME@<#' \
		"$probe" >"$target"
	grep -q @QEMU_CTIME@ "$target" && grep -q @SELF_CTIME@ "$target" || die "$name: libvirt's capabilities cache looks different now"
}

# probe_qemu: starts libvirtd like in the Pod, and copies the cache that it writes. It runs as PID 1 of its own
# namespaces, so that its mounts are removed when it exits. bash reaps processes, which libvirtd requires of its parent.
probe_qemu() {
	set -eu
	local device try run=/run/libvirt
	mount --make-rprivate /
	mount -t tmpfs tmpfs "$root/run"
	mount -t tmpfs tmpfs "$root/dev"
	mount -t proc proc "$root/proc"
	for device in null zero random urandom; do
		touch "$root/dev/$device"
		mount --bind "/dev/$device" "$root/dev/$device"
	done
	mkdir -p "$root$run/tmp" "$root/run/kubevirt/sockets"
	chown -R 107:107 "$root/run"
	env -i PATH=/usr/sbin:/usr/bin HOME=$run XDG_RUNTIME_DIR=$run/run XDG_CONFIG_HOME=$run/config XDG_CACHE_HOME=$run/cache \
		TMPDIR=$run/tmp /usr/sbin/chroot --userspec=107:107 "$root" \
		/usr/sbin/libvirtd --config /usr/share/vireo/libvirt/libvirtd.conf &
	# libvirt starts QEMU at the first request for its capabilities.
	for ((try = 0; try < 100; try++)); do
		if env -i PATH=/usr/bin HOME=$run LIBVIRT_AUTOSTART=0 /usr/sbin/chroot --userspec=107:107 "$root" /usr/bin/virsh -q \
			-c 'qemu:///session?socket=/run/kubevirt/sockets/libvirt-sock' domcapabilities --virttype qemu >/dev/null 2>&1; then
			cat "$root$run"/cache/libvirt/qemu/cache/capabilities/*.xml >"$probe"
			return 0
		fi
		sleep 0.1
	done
	return 1
}
