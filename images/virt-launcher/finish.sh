# shellcheck shell=bash disable=SC2154 # hack/images/rootfs.sh sets the variables and runs finish

finish() {
	# swtpm_setup insists on /tmp. A Pod's root is read-only; its run time volume is not.
	rmdir "$root/tmp"
	ln -s run/libvirt/tmp "$root/tmp"
	# libvirt locks a guest's console there, by a path that is compiled in.
	ln -s ../run/libvirt/lock "$root/var/lock"
	capabilities
}

# What libvirt finds out about QEMU by starting it is found out here, once, and kept in the image: with it a VM's libvirtd
# answers its first connection about half a second sooner and needs 6 MB less. libvirt compares the times at which QEMU's and
# its own files changed, so these two are left open: virt-launcher fills them in. Only for Pods without /dev/kvm; where
# KVM is usable, libvirt does not believe the file and asks QEMU again.
capabilities() {
	local target=$root/usr/share/vireo/libvirt/capabilities.xml probe=$work/capabilities.xml
	if [ "$(id -u)" != 0 ]; then
		say "$name: not root, so QEMU's capabilities are not kept in the image (VMs start a little slower)"
		return
	fi
	need unshare chroot
	root=$root probe=$probe unshare --mount --pid --net --ipc --fork --kill-child bash -c "$(declare -f probe_qemu); probe_qemu" \
		>"$work/probe.log" 2>&1 || die "$name: libvirtd does not start in the new root: $(tail -5 "$work/probe.log")"
	# In the image every file and folder is from 1970, so libvirt sees no time of the module folder.
	sed -e '/<qemumoddirmtime>/d' -e 's#<qemuctime>[0-9]*<#<qemuctime>@QEMU_CTIME@<#' -e 's#<selfctime>[0-9]*<#<selfctime>@SELF_CTIME@<#' \
		"$probe" >"$target"
	grep -q @QEMU_CTIME@ "$target" && grep -q @SELF_CTIME@ "$target" || die "$name: libvirt's capabilities cache looks different now"
}

# probe_qemu: as PID 1 of namespaces of its own, where every mount ends with it: starts libvirtd as the Pod does, and takes
# the cache that it writes. bash reaps, as libvirtd's parent must.
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
	# libvirt asks QEMU when someone first wants to know.
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
