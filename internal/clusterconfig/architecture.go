// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"cmp"
	"runtime"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Architectures that a guest can have, as Kubernetes names them.
const (
	ArchAMD64 = "amd64"
	ArchARM64 = "arm64"
	ArchS390X = "s390x"
)

// Architecture is the configuration of an architecture.
type Architecture struct {
	MachineType      string
	EmulatedMachines []string
}

// MachineType returns the machine type of VMIs that do not set one. It is empty for an unknown architecture.
func (c Config) MachineType(arch string) string { return c.Architectures[arch].MachineType }

// EmulatedMachines returns glob patterns of the machine types that VMIs may have.
func (c Config) EmulatedMachines(arch string) []string { return c.Architectures[arch].EmulatedMachines }

// defaultArchitecture returns the architecture of the process. KubeVirt uses that of its operator's node.
func defaultArchitecture() string { return runtime.GOARCH }

func defaultArchitectures() map[string]Architecture {
	return map[string]Architecture{
		ArchAMD64: {MachineType: "q35", EmulatedMachines: []string{"q35*", "pc-q35*"}},
		ArchARM64: {MachineType: "virt", EmulatedMachines: []string{"virt*"}},
		ArchS390X: {MachineType: "s390-ccw-virtio", EmulatedMachines: []string{"s390-ccw-virtio*"}},
	}
}

// architecture reads the settings of each architecture, and the deprecated ones, which as in KubeVirt win over them for every
// architecture.
func (p *parser) architecture(s *v1.KubeVirtConfiguration, at *field.Path) {
	if a := s.ArchitectureConfiguration; a != nil {
		path := at.Child("architectureConfiguration")
		p.overlay(ArchAMD64, a.Amd64)
		p.overlay(ArchARM64, a.Arm64)
		p.overlay(ArchS390X, a.S390x)
		switch a.DefaultArchitecture {
		case "":
		case ArchAMD64, ArchARM64, ArchS390X:
			p.config.DefaultArchitecture = a.DefaultArchitecture
		default:
			p.errs = append(p.errs, field.NotSupported(path.Child("defaultArchitecture"), a.DefaultArchitecture,
				[]string{ArchAMD64, ArchARM64, ArchS390X}))
		}
	}
	deprecated := &v1.ArchSpecificConfiguration{EmulatedMachines: s.EmulatedMachines, MachineType: s.MachineType}
	for arch := range p.config.Architectures {
		p.overlay(arch, deprecated)
	}
}

// overlay overrides the settings of an architecture with those that are set.
func (p *parser) overlay(arch string, s *v1.ArchSpecificConfiguration) {
	if s == nil {
		return
	}
	a := p.config.Architectures[arch]
	a.MachineType = cmp.Or(s.MachineType, a.MachineType)
	if len(s.EmulatedMachines) > 0 {
		a.EmulatedMachines = s.EmulatedMachines
	}
	p.config.Architectures[arch] = a
}
