// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

// UnimplementedGates are the feature gates of KubeVirt whose features are not implemented yet. The values are the ends of
// warnings.
var UnimplementedGates = map[string]string{ //nolint:gosec // G101: sentences, no credentials
	"ConfigurableHypervisor":          "KVM and emulation are what there is",
	"ContainerPathVolumes":            "shared file systems are not implemented yet",
	"CrossArchitectureVirtualization": "a guest has the architecture of its node",
	"DecentralizedLiveMigration":      "migration between namespaces or clusters is not implemented yet",
	"DownwardMetrics":                 "downward metrics are not implemented yet",
	"EnableVirtioFsStorageVolumes":    "shared file systems are not implemented yet",
	"ExperimentalIgnitionSupport":     "Ignition data is not implemented yet",
	"FirmwareAutoSelection":           "the firmware of the launcher image is used",
	"GPUsWithDRA":                     "devices by resource claim are not implemented yet",
	"GraceIOVirtualization":           "passing devices through is not implemented yet",
	"HostDevices":                     "passing devices through is not implemented yet",
	"HostDevicesWithDRA":              "devices by resource claim are not implemented yet",
	"HypervStrictCheck":               "the scheduler ignores Hyper-V features",
	"IOMMUFD":                         "passing devices through is not implemented yet",
	"LibvirtHooksServerAndClient":     "launchers run no hooks of libvirt",
	"KubevirtSeccompProfile":          "nodes get no seccomp profile: use seccompConfiguration with one that they have",
	"NetworkDevicesWithDRA":           "devices by resource claim are not implemented yet",
	"OptOutRoleAggregation":           "roles are installed with the manager",
	"PCINUMAAwareTopology":            "passing devices through is not implemented yet",
	"PasstBinding":                    "passt is not implemented yet",
	"Plugins":                         "plugins are not implemented yet",
	"ReservedOverheadMemlock":         "locked memory is not implemented yet",
	"Root":                            "launchers never run as root",
	"Sidecar":                         "hook sidecars are not implemented yet",
	"Template":                        "templates are not implemented yet",
	"VGPULiveMigration":               "passing devices through is not implemented yet",
	"VMStatsCollector":                "the statistics of the agent's metrics are what there is",
	"WorkloadEncryptionSEV":           "encrypted guests are not implemented yet",
	"WorkloadEncryptionTDX":           "encrypted guests are not implemented yet",
}
