#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Vireo Authors
#
# Runs the end-to-end specs for guests with Linux under KVM: QEMU emulates a machine with hardware virtualization, in
# which Debian runs a local cluster with the images and programs of this clone. It needs root, about 8 GiB of free memory
# and 15 GB of disk. It leaves out long specs, unless ALL=1 is set. With FOCUS it runs the specs of that name. NODES is
# the number of nodes (default: 1; two are slower, and have no CPUs for one Pod only). With BENCH=1 it runs the benchmarks
# of starts, of hotplug and of migrations instead, with few rounds. MINUTES is when a run that hangs is ended (default:
# 90). What the run leaves is in .build/machine/results: log.txt, specs.txt, junit.xml, console.txt, bench, and the logs
# of the cluster. During a run, now.txt shows what runs.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
step_logs=$PWD/.build/machine
mkdir -p "$step_logs"
. hack/steps.sh
. hack/deploy-local.sh
# shellcheck disable=SC2034 # steps.sh uses it
steps=5

# AMD's virtualization with nested paging, which QEMU emulates. KVM does not pass on what needs xsave.
processor=EPYC-Rome,+svm,+npt,-xsave,-avx,-avx2,-fma,-f16c
# Two NUMA nodes of two CPUs, so that a guest can have CPUs and memory of one. Huge pages are on the second one, and CPU 0
# is for Pods without CPUs of their own.
topology=(
	-smp 4,sockets=2,cores=2 -m 10G
	-object memory-backend-ram,id=memory0,size=5G -numa node,nodeid=0,cpus=0-1,memdev=memory0
	-object memory-backend-ram,id=memory1,size=5G -numa node,nodeid=1,cpus=2-3,memdev=memory1
)
huge_pages=1:1100
work=$step_logs/run
results=$step_logs/results
tools=(kubernetes etcd containerd coredns multus pause)

# The functions are run by `step`, in a condition, where a failed command does not end them: so each line leads to the
# next by &&.
build() {
	build_images "${measured_images[@]}" && make bin/kubectl bin/virtctl && hack/installer.sh dist/install.yaml &&
		hack/tools/build.sh "${tools[@]}" && hack/cluster/cluster --help >/dev/null && go test -c -o bin/e2e.test ./test/e2e &&
		{ [ -z "${BENCH:-}" ] || { go build -o bin/bench-start ./test/perf/start && go test -c -o bin/integration.test ./test/integration; }; }
}

# add_benchmarks TREE: adds what the benchmarks need besides the specs.
add_benchmarks() {
	local guest launcher
	guest=$(hack/images/guest.sh guest-small) && launcher=$(hack/images/rootfs.sh --unpacked virt-launcher) &&
		cp -r "$guest/boot" "$1/guest" && cp -a "$launcher" "$1/launcher" && cp bin/{bench-start,integration.test} "$1/bin/" &&
		mkdir -p "$1/internal/domain" && cp -r internal/domain/testdata "$1/internal/domain/testdata"
}

# payload: makes the disk with what the machine runs.
payload() {
	local tree=$work/tree name paths labels='kvm-linux && !kvm-linux-long'
	[ -z "${ALL:-}${FOCUS:-}" ] || labels=kvm-linux
	rm -rf "$work" && mkdir -p "$tree"/{bin,tools,images,config} &&
		cp bin/{kubectl,virtctl,e2e.test} "$(hack/tools/build.sh --path program)/cluster" "$tree/bin/" || return 1
	for name in "${tools[@]}"; do
		paths=$(hack/tools/build.sh --path "$name") && cp -r "$paths" "$tree/tools/$name" || return 1
	done
	for name in "${measured_images[@]}"; do cp ".build/images/$name.tar" "$tree/images/" || return 1; done
	cp dist/install.yaml config/samples/kubevirt.yaml "$tree/config/" && cp -r test/e2e/testdata "$tree/testdata" &&
		cp hack/machine/inside.sh "$tree/run" && { [ -z "${BENCH:-}" ] || add_benchmarks "$tree"; } &&
		printf '%s=%q\n' FOCUS "${FOCUS:-}" LABELS "${LABELS-$labels}" NODES "${NODES:-1}" BENCH "${BENCH:-}" >"$tree/settings" &&
		PATH=$PATH:/usr/sbin:/sbin mke2fs -q -t ext4 -L vireo-payload -m 0 -d "$tree" "$work/payload.ext4" 8G && rm -rf "$tree"
}

# run: runs the machine until it has powered off, and prints its log. It is a process of its own: `watched` pipes it.
run() {
	local root launcher pid started=$SECONDS shown=0 lines
	root=$(hack/images/guest.sh guest-node) && launcher=$(hack/images/rootfs.sh --unpacked virt-launcher) &&
		rm -rf "$results" && mkdir -p "$results" && : >"$results/log.txt" &&
		qemu-img create -q -f qcow2 -F raw -b "$root/disk/root.ext4" "$work/root.qcow2" || return 1
	"$launcher/lib64/ld-linux-x86-64.so.2" --library-path "$launcher/usr/lib/x86_64-linux-gnu" \
		"$launcher/usr/bin/qemu-system-x86_64" -L "$launcher/usr/share/qemu" -L "$launcher/usr/share/seabios" \
		-nodefaults -no-user-config -display none -no-reboot \
		-machine q35 -accel tcg,thread=multi -cpu "$processor" "${topology[@]}" \
		-kernel "$root/boot/vmlinuz" -initrd "$root/boot/initrd.img" \
		-append "root=/dev/vda rootfstype=ext4 rw console=ttyS0,115200n8 panic=-1 mitigations=off net.ifnames=0 hugepages=$huge_pages" \
		-drive "file=$work/root.qcow2,if=virtio,format=qcow2,cache=unsafe" \
		-drive "file=$work/payload.ext4,if=virtio,format=raw,cache=unsafe" \
		-virtfs "local,path=$results,mount_tag=results,security_model=mapped-xattr" \
		-serial "file:$results/console.txt" >"$results/qemu.txt" 2>&1 &
	pid=$!
	# shellcheck disable=SC2064 # the process of now
	trap "kill $pid 2>/dev/null; rm -rf $work" EXIT
	while kill -0 "$pid" 2>/dev/null; do
		sleep 2
		lines=$(wc -l <"$results/log.txt")
		[ "$lines" = "$shown" ] || sed -n "$((shown + 1)),${lines}p" "$results/log.txt"
		shown=$lines
		if [ $((SECONDS - started)) -gt $((${MINUTES:-90} * 60)) ]; then
			echo "The machine still runs after ${MINUTES:-90} minutes. The last lines of its console:"
			tail -20 "$results/console.txt"
			return 1
		fi
	done
	[ "$(cat "$results/result" 2>/dev/null)" = 0 ] || {
		echo "The last lines of the machine's console:"
		tail -5 "$results/console.txt"
		return 1
	}
}

exec 9>"$step_logs/lock"
flock -n 9 || { echo "another run of this clone uses $step_logs" >&2; exit 1; }
free=$(awk '/^MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)
[ "$free" -ge 8192 ] || { echo "the machine needs 8 GiB of free memory: there are $free MiB" >&2; exit 1; }
watched "Debian packages" make deps
watched "programs and images" build
watched "the machine (the first time, about 5 minutes)" hack/images/guest.sh guest-node
step "payload" payload
watched "running the machine" run
