// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Feature gates of KubeVirt that only admission checks. Package clusterconfig defines the others.
const (
	gateDecentralized   = "DecentralizedLiveMigration"
	gateDownwardMetrics = "DownwardMetrics"
	gateHostDevices     = "HostDevices"
	gateHotplugVolumes  = "DeclarativeHotplugVolumes"
	gateIgnition        = "ExperimentalIgnitionSupport"
	gateMultiArch       = "MultiArchitecture"
	gateNetworkDRA      = "NetworkDevicesWithDRA"
	gatePasst           = "PasstBinding"
	gateRebootPolicy    = "RebootPolicy"
	gateReservedMemory  = "ReservedOverheadMemlock"
	gateSEV             = "WorkloadEncryptionSEV"
	gateSidecar         = "Sidecar"
	gateSnapshot        = "Snapshot"
	gateTDX             = "WorkloadEncryptionTDX"
	gateVirtioFSStorage = "EnableVirtioFsStorageVolumes"
	gateVSOCK           = "VSOCK"
)

// ConfigSource provides the current configuration. Admission reads it for each request, so that a change of the
// KubeVirt object takes effect at once. clusterconfig.Store implements it.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// architecture returns the architecture of a guest: the spec's, or else the cluster's default.
func architecture(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) string {
	if spec.Architecture != "" {
		return spec.Architecture
	}
	return config.DefaultArchitecture
}
