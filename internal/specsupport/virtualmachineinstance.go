// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

// VMIFields are the unimplemented fields of a VMI's spec, and of the template of a VM.
var VMIFields = []Field{
	{"architecture", []string{"arm64", "s390x", "ppc64le"}, Refuse, "only amd64 guests are implemented yet"},

	{"domain.memory.reservedOverhead.memLock", []string{"Required"}, Refuse, "locked memory is not implemented yet"},
	{"domain.launchSecurity", nil, Refuse, "encrypted guests are not implemented yet"},

	{"domain.devices.watchdog.diag288", nil, Refuse, "it exists on s390x only: use i6300esb"},
	{"domain.devices.gpus", nil, Refuse, "passing devices through is not implemented yet"},
	{"domain.devices.hostDevices", nil, Refuse, "passing devices through is not implemented yet"},
	{"domain.devices.filesystems", nil, Refuse, "shared file systems are not implemented yet"},
	{"domain.devices.downwardMetrics", nil, Refuse, "downward metrics are not implemented yet"},

	{"domain.devices.disks[].cdrom.readonly", []string{"false"}, Warn, "a guest never writes to a CD-ROM, whatever this says"},
	{"domain.devices.disks[].lun.reservation", nil, Refuse, "persistent reservations are not implemented yet"},
	{"domain.devices.disks[].changedBlockTracking", nil, Refuse, "choosing single disks is not implemented: the labels of the VM decide, see configuration.changedBlockTrackingLabelSelectors of the KubeVirt object"},

	{"domain.devices.interfaces[].sriov", nil, Refuse, "SR-IOV is not implemented yet: use masquerade or bridge"},
	{"domain.devices.interfaces[].slirp", nil, Refuse, "KubeVirt removed it: use masquerade"},
	{"domain.devices.interfaces[].macvtap", nil, Refuse, "KubeVirt removed it: use bridge"},
	{"domain.devices.interfaces[].passt", nil, Refuse, "KubeVirt removed it: use masquerade"},
	{"domain.devices.interfaces[].passtBinding", nil, Refuse, "passt is not implemented yet: use masquerade"},
	{"domain.devices.interfaces[].binding", nil, Refuse, "binding plugins are not implemented yet: use masquerade or bridge"},
	{"networks[].resourceClaim", nil, Refuse, "a network's device by resource claim needs SR-IOV, which is not implemented yet"},

	{"volumes[].downwardMetrics", nil, Refuse, "downward metrics are not implemented yet"},
	{"volumes[].memoryDump", nil, Refuse, "memory is dumped without a volume in the spec: remove it, and use virtctl memory-dump"},
	{"volumes[].containerPath", nil, Refuse, "shared file systems are not implemented yet"},
}
