// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

// group contains the systems that consoles show with the same icon.
type group struct {
	// icon is a class of the console's icon font.
	icon string
	// tags are keywords for consoles, besides those that all preferences have.
	tags    string
	systems []system
}

// system is an operating system, or a variant of one.
type system struct {
	// name is the name of the preference.
	name string
	// title is shown by consoles.
	title string
	// cpus and memory are the minimum that the system requires. 0 and "" mean that it has no requirement.
	cpus   uint32
	memory string
	// traits are applied in their order. The first one is the kind of system.
	traits traits
}

// systems are the common preferences. Source of the values: kubevirt/common-instancetypes v1.7.0.
var systems = []group{
	{"icon-alpine", "alpine", []system{
		{"alpine", "Alpine", 1, "512Mi", traits{linux}},
	}},
	{"icon-centos", "linux,centos-stream", []system{
		{"centos.stream9", "CentOS Stream 9", 1, "1.5Gi", traits{linux, ownIOThread}},
		{"centos.stream9.desktop", "CentOS Stream 9", 1, "1.5Gi", traits{linux, ownIOThread, desktop}},
		{"centos.stream9.dpdk", "CentOS Stream 9", 8, "1.5Gi", traits{linux, ownIOThread, dpdk}},
		{"centos.stream10", "CentOS Stream 10", 1, "1.5Gi", traits{linux, ownIOThread}},
		{"centos.stream10.desktop", "CentOS Stream 10", 1, "1.5Gi", traits{linux, ownIOThread, desktop}},
	}},
	{"icon-cirros", "cirros", []system{
		{"cirros", "Cirros", 1, "256Mi", traits{linux}},
	}},
	{"icon-debian", "debian", []system{
		{"debian", "Debian", 1, "512Mi", traits{linux, efi}},
	}},
	{"icon-fedora", "fedora", []system{
		{"fedora", "Fedora (amd64)", 1, "2Gi", traits{linux, secureBoot, amd64}},
		{"fedora.arm64", "Fedora (arm64)", 1, "2Gi", traits{linux, arm64}},
		{"fedora.s390x", "Fedora (s390x)", 1, "2Gi", traits{linux, s390x}},
	}},
	{"icon-other", "legacy", []system{
		{"legacy", "Legacy Guest", 0, "", traits{legacy}},
	}},
	{"icon-linux", "linux", []system{
		{"linux", "Linux Guest", 0, "", traits{linux}},
	}},
	{"icon-linux", "linux-efi", []system{
		{"linux.efi", "Linux EFI Guest", 0, "", traits{linux, efi}},
	}},
	{"icon-linux", "linux-virtio-transitional", []system{
		{"linux.virtiotransitional", "Linux Virtio Transitional Guest", 0, "", traits{linux, transitional}},
	}},
	{"icon-opensuse-leap", "opensuse.leap", []system{
		{"opensuse.leap", "OpenSUSE Leap", 1, "2Gi", traits{linux}},
	}},
	{"icon-opensuse-tumbleweed", "opensuse.tumbleweed", []system{
		{"opensuse.tumbleweed", "OpenSUSE Tumbleweed", 1, "2Gi", traits{linux}},
	}},
	{"icon-oracle", "oraclelinux", []system{
		{"oraclelinux", "Oracle Linux", 2, "4Gi", traits{linux, efi}},
	}},
	{"icon-rhel", "linux,rhel", []system{
		{"rhel.7", "Red Hat Enterprise Linux 7", 1, "1Gi", traits{linux}},
		{"rhel.7.desktop", "Red Hat Enterprise Linux 7", 1, "1Gi", traits{linux, desktop}},
		{"rhel.8", "Red Hat Enterprise Linux 8", 1, "1.5Gi", traits{linux}},
		{"rhel.8.desktop", "Red Hat Enterprise Linux 8", 1, "1.5Gi", traits{linux, desktop}},
		{"rhel.8.dpdk", "Red Hat Enterprise Linux 8", 8, "1.5Gi", traits{linux, dpdk}},
		{"rhel.9", "Red Hat Enterprise Linux 9 (amd64)", 1, "1.5Gi", traits{linux, ownIOThread, secureBoot, amd64}},
		{"rhel.9.desktop", "Red Hat Enterprise Linux 9 Desktop (amd64)", 1, "1.5Gi", traits{linux, ownIOThread, secureBoot, amd64, desktop}},
		{"rhel.9.dpdk", "Red Hat Enterprise Linux 9 DPDK (amd64)", 8, "1.5Gi", traits{linux, ownIOThread, secureBoot, amd64, dpdk}},
		{"rhel.9.realtime", "Red Hat Enterprise Linux 9 Realtime (amd64)", 4, "4Gi", traits{linux, ownIOThread, secureBoot, amd64, realtime}},
		{"rhel.9.arm64", "Red Hat Enterprise Linux 9 (arm64)", 1, "1.5Gi", traits{linux, ownIOThread, arm64}},
		{"rhel.9.s390x", "Red Hat Enterprise Linux 9 (s390x)", 1, "1.5Gi", traits{linux, ownIOThread, s390x}},
		{"rhel.10", "Red Hat Enterprise Linux 10 (amd64)", 1, "1.5Gi", traits{linux, ownIOThread, secureBoot, amd64}},
		{"rhel.10.arm64", "Red Hat Enterprise Linux 10 (arm64)", 1, "1.5Gi", traits{linux, ownIOThread, arm64}},
		{"rhel.10.s390x", "Red Hat Enterprise Linux 10 (s390x)", 1, "1.5Gi", traits{linux, ownIOThread, s390x}},
	}},
	{"icon-sles", "sles", []system{
		{"sles", "SUSE Linux Enterprise Server", 1, "2Gi", traits{linux}},
	}},
	{"icon-ubuntu", "ubuntu", []system{
		{"ubuntu", "Ubuntu", 1, "2Gi", traits{linux}},
	}},
	{"icon-windows", "windows", []system{
		{"windows.xp", "Microsoft Windows XP", 1, "128Mi", traits{windows, noPCIHole64}},
		{"windows.2k3", "Microsoft Windows Server 2003", 1, "256Mi", traits{windows, interfaceModel("rtl8139"), noPCIHole64}},
		{"windows.2k8", "Microsoft Windows Server 2008/2008 R2", 1, "512Mi", traits{windows, interfaceModel("e1000")}},
		{"windows.2k8.virtio", "Microsoft Windows Server 2008/2008 R2 (virtio)", 1, "512Mi", traits{windows, windowsVirtio}},
		{"windows.7", "Microsoft Windows 7", 1, "2Gi", traits{windows}},
		{"windows.7.virtio", "Microsoft Windows 7 (virtio)", 1, "2Gi", traits{windows, windowsVirtio}},
		{"windows.2k12", "Microsoft Windows Server 2012/2012 R2", 1, "512Mi", traits{windows}},
		{"windows.2k12.virtio", "Microsoft Windows Server 2012/2012 R2 (virtio)", 1, "512Mi", traits{windows, windowsVirtio}},
		{"windows.10", "Microsoft Windows 10", 1, "2Gi", traits{windows, secureBoot}},
		{"windows.10.virtio", "Microsoft Windows 10 (virtio)", 1, "2Gi", traits{windows, secureBoot, windowsVirtio}},
		{"windows.2k16", "Microsoft Windows Server 2016", 1, "2Gi", traits{windows, secureBoot}},
		{"windows.2k16.virtio", "Microsoft Windows Server 2016 (virtio)", 1, "2Gi", traits{windows, secureBoot, windowsVirtio}},
		{"windows.2k19", "Microsoft Windows Server 2019", 1, "2Gi", traits{windows, secureBoot}},
		{"windows.2k19.virtio", "Microsoft Windows Server 2019 (virtio)", 1, "2Gi", traits{windows, secureBoot, windowsVirtio}},
		{"windows.11", "Microsoft Windows 11", 2, "4Gi", traits{windows, secureBoot, tpm}},
		{"windows.11.virtio", "Microsoft Windows 11 (virtio)", 2, "4Gi", traits{windows, secureBoot, tpm, windowsVirtio}},
		{"windows.2k22", "Microsoft Windows Server 2022", 1, "2Gi", traits{windows, secureBoot, tpm}},
		{"windows.2k22.virtio", "Microsoft Windows Server 2022 (virtio)", 1, "2Gi", traits{windows, secureBoot, tpm, windowsVirtio}},
		{"windows.2k25", "Microsoft Windows Server 2025", 1, "2Gi", traits{windows, secureBoot, tpm}},
		{"windows.2k25.virtio", "Microsoft Windows Server 2025 (virtio)", 1, "2Gi", traits{windows, secureBoot, tpm, windowsVirtio}},
	}},
}
