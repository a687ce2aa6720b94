// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

// Reasons of more than one field.
const (
	imageHasFirmware = "libvirt chooses among the firmware of the launcher image"
)

// KubeVirtFields are the unimplemented fields of a KubeVirt object's spec. They only warn: clusters keep the KubeVirt object that
// they had before Vireo, and none of these fields changes what a guest gets.
var KubeVirtFields = []Field{
	{"synchronizationPort", nil, Warn, "migration between clusters is not implemented yet"},
	{"workloads.replicas", nil, Warn, "the agent runs once on each node: use nodePlacement to choose the nodes"},
	{"configuration.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.amd64.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.arm64.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.s390x.ovmfPath", nil, Warn, imageHasFirmware},
	{"configuration.architectureConfiguration.ppc64le", nil, Warn, "KubeVirt dropped the architecture"},
	{"configuration.supportedGuestAgentVersions", nil, Warn, "every version is used: KubeVirt, too, queries which commands a guest agent has"},
	{"configuration.developerConfiguration.minimumClusterTSCFrequency", nil, Warn, "guests with a fixed TSC frequency are not implemented yet"},
	{"configuration.developerConfiguration.logVerbosity.virtOperator", nil, Warn, "virt-controller does its work: use virtController"},
	{"configuration.developerConfiguration.logVerbosity.virtSynchronizationController", nil, Warn, "migration between clusters is not implemented yet"},
	{"configuration.migrations.matchSELinuxLevelOnMigration", nil, Warn, "the SELinux level of launcher Pods is not reported yet, and so no target Pod gets one"},
	{"configuration.selinuxLauncherType", nil, Warn, "the container runtime's SELinux type is used"},
	{"configuration.supportContainerResources[].type", []string{"container-disk", "virtiofs", "sidecar"}, Warn, "launcher Pods have no such container"},
	{
		"configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
		[]string{"kubevirt/kubevirt.json"}, Warn, "nodes do not get KubeVirt's profile, and the container runtime's is used",
	},
	{"configuration.permittedHostDevices", nil, Warn, "passing devices through is not implemented yet"},
	{"configuration.mediatedDevicesConfiguration", nil, Warn, "passing devices through is not implemented yet"},
	{"configuration.minCPUModel", nil, Warn, "KubeVirt does not use it either"},
	{"configuration.ksmConfiguration", nil, Warn, "same-page merging is left to the node"},
	{"configuration.virtTemplateDeployment.enabled", nil, Warn, "templates are not implemented yet"},
	{"configuration.hypervisors", nil, Warn, "KVM and emulation are what there is"},
	{"configuration.persistentReservationConfiguration.enabled", nil, Warn, "persistent reservations are not implemented yet"},
	{"configuration.confidentialCompute", nil, Warn, "encrypted guests are not implemented yet"},
	{"configuration.roleAggregationStrategy", []string{"Manual"}, Warn, "the roles are installed with the manifests: install them with config/manual-role-aggregation, or the chart with roles.aggregate=false"},
	{"configuration.network.binding", nil, Warn, "binding plugins are not implemented yet"},
	{"configuration.network.permitSlirpInterface", nil, Warn, "slirp was removed from KubeVirt"},
	{"configuration.developerConfiguration.diskVerification", nil, Warn, "disks are read inside of the guest's own memory limit"},
}
