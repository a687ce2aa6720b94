// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// configureFeatures sets the machine's features other than Hyper-V's.
func configureFeatures(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	features := v1.Features{}
	if vmi.Spec.Domain.Features != nil {
		features = *vmi.Spec.Domain.Features
	}
	list := &libvirtxml.DomainFeatureList{
		// The VMware port makes some guests load drivers for VMware.
		VMPort: &libvirtxml.DomainFeatureState{State: "off"},
	}
	domain.Features = list
	if facts.Emulation {
		list.TCG = &libvirtxml.DomainFeatureTCG{TBCache: &libvirtxml.DomainFeatureTCGTBCache{Unit: "MiB",
			Size: launcherpod.TranslationCacheMiB}}
	}
	if enabled(features.ACPI.Enabled) {
		list.ACPI = &libvirtxml.DomainFeature{}
	} else if bootloader(vmi).EFI != nil {
		return field.Invalid(featuresPath.Child("acpi", "enabled"), false, "UEFI needs ACPI: leave it out, or boot with bios")
	}
	if features.APIC != nil && enabled(features.APIC.Enabled) {
		list.APIC = &libvirtxml.DomainFeatureAPIC{}
		if features.APIC.EndOfInterrupt {
			list.APIC.EOI = "on"
		}
	}
	if features.KVM != nil && features.KVM.Hidden {
		list.KVM = &libvirtxml.DomainFeatureKVM{Hidden: &libvirtxml.DomainFeatureState{State: "on"}}
	}
	if err := configureSMM(vmi, features.SMM, list); err != nil {
		return err
	}
	if features.Pvspinlock != nil {
		on := enabled(features.Pvspinlock.Enabled)
		if on && facts.Emulation {
			return field.Invalid(featuresPath.Child("pvspinlock", "enabled"), true,
				"needs KVM and the guest's CPU is emulated: leave pvspinlock out")
		}
		list.PVSpinlock = &libvirtxml.DomainFeatureState{State: onOff(on)}
	}
	return nil
}

// configureSMM sets SMM as in the spec, and enables it for Secure Boot, which needs it.
func configureSMM(vmi *v1.VirtualMachineInstance, smm *v1.FeatureState, list *libvirtxml.DomainFeatureList) error {
	secure := usesSecureBoot(vmi)
	if smm == nil && !secure {
		return nil
	}
	on := smm == nil || enabled(smm.Enabled)
	if secure && !on {
		return field.Invalid(featuresPath.Child("smm", "enabled"), false,
			"Secure Boot needs SMM: leave it out, or set spec.domain.firmware.bootloader.efi.secureBoot to false")
	}
	list.SMM = &libvirtxml.DomainFeatureSMM{State: onOff(on)}
	return nil
}
