// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// gates that admission asks for beyond those that clusterconfig names. Names are KubeVirt's.
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
	gateTDX             = "WorkloadEncryptionTDX"
	gateVirtioFSStorage = "EnableVirtioFsStorageVolumes"
	gateVSOCK           = "VSOCK"
)

// ConfigSource gives the configuration that is in force now. Admission asks on each request, so that a change of the
// KubeVirt object works at once. clusterconfig.Store is one.
type ConfigSource interface {
	Current() clusterconfig.Config
}

// architecture is the one that a spec's guest has.
func architecture(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) string {
	if spec.Architecture != "" {
		return spec.Architecture
	}
	return config.DefaultArchitecture
}
