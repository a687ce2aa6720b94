// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// ErrNotPrepared says that Facts lacks something that the VMI needs. It is the agent's to prepare and to try
// again; every other error of Build is a *field.Error about the VMI, which only a change of the VMI mends.
var ErrNotPrepared = errors.New("not prepared on the node")

// configurator adds one device or concern to a domain. It reads the VMI and the facts and changes neither.
type configurator func(*v1.VirtualMachineInstance, Facts, *libvirtxml.Domain) error

// configurators run in this order. Dedicated CPUs refer to what comes before them, and the last ones to all others:
// controllers are counted from the devices that are there.
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

// Build makes the libvirt domain of a VMI. It returns every error that it finds, joined.
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

// enabled reads a switch that is on unless it says otherwise.
func enabled(state *bool) bool { return state == nil || *state }

// isTrue reads a switch that is off unless it says otherwise.
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
