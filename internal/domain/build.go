// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// ErrNotPrepared means that Facts lacks something that the VMI needs. The agent prepares it and tries again. Every
// other error of Build is a *field.Error, which only a change of the VMI resolves.
var ErrNotPrepared = errors.New("not prepared on the node")

// configurator adds one device or setting to a domain. It does not change the VMI or the facts.
type configurator func(*v1.VirtualMachineInstance, Facts, *libvirtxml.Domain) error

// configurators run in this order. Those for dedicated CPUs read the results of earlier ones. The last ones read all
// devices, for example to count the controllers that these need.
var configurators = []configurator{
	refuseUnsupported,
	configureIdentity,
	configureMemory,
	configureCPU,
	configureOS,
	configureACPITables,
	configureSysInfo,
	configureFeatures,
	configureHyperV,
	configureClock,
	configureLifecycle,
	configureIOThreads,
	configureDedicatedCPUs,
	configureNUMA,
	configureMemoryHotplug,
	configureRealtime,
	configureDisks,
	configureInterfaces,
	configureSerialConsole,
	configureGraphics,
	configureInputs,
	configureGuestAgentChannel,
	configureRNG,
	configureBalloon,
	configureWatchdog,
	configureTPM,
	configureSound,
	configureUSBRedirection,
	configurePanicDevices,
	configureVSOCK,
	configureBootOrder,
	configureControllers,
	configurePCITopology,
	placeOnRootComplex,
}

// Build returns the libvirt domain of a VMI, or all errors, joined.
func Build(vmi *v1.VirtualMachineInstance, facts Facts) (*libvirtxml.Domain, error) {
	domain := &libvirtxml.Domain{Devices: &libvirtxml.DomainDeviceList{Emulator: Emulator}}
	var errs []error
	for _, configure := range configurators {
		if err := configure(vmi, facts, domain); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return domain, nil
}

var (
	specPath     = field.NewPath("spec")
	domainPath   = specPath.Child("domain")
	devicesPath  = domainPath.Child("devices")
	cpuPath      = domainPath.Child("cpu")
	firmwarePath = domainPath.Child("firmware")
	featuresPath = domainPath.Child("features")
)

// enabled returns the value of a flag whose default is true.
func enabled(state *bool) bool { return state == nil || *state }

// isTrue returns the value of a flag whose default is false.
func isTrue(state *bool) bool { return state != nil && *state }

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}
