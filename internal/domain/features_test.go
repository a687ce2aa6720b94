// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

func off() *v1.FeatureState { return &v1.FeatureState{Enabled: ptr.To(false)} }

func withFeatures(features v1.Features) *guest {
	return makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Features = &features })
}

func TestFeatures(t *testing.T) {
	state := func(s string) *libvirtxml.DomainFeatureState { return &libvirtxml.DomainFeatureState{State: s} }
	vmport, acpi := state("off"), &libvirtxml.DomainFeature{}
	tcg := &libvirtxml.DomainFeatureTCG{TBCache: &libvirtxml.DomainFeatureTCGTBCache{Unit: "MiB",
		Size: launcherpod.TranslationCacheMiB}}
	for name, tc := range map[string]struct {
		guest *guest
		want  libvirtxml.DomainFeatureList
	}{
		"default":      {makeGuest(), libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi}},
		"without ACPI": {withFeatures(v1.Features{ACPI: *off()}), libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport}},
		"APIC": {withFeatures(v1.Features{APIC: &v1.FeatureAPIC{EndOfInterrupt: true}}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi, APIC: &libvirtxml.DomainFeatureAPIC{EOI: "on"}}},
		"APIC off": {withFeatures(v1.Features{APIC: &v1.FeatureAPIC{FeatureState: *off()}}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi}},
		"hidden KVM": {withFeatures(v1.Features{KVM: &v1.FeatureKVM{Hidden: true}}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi,
				KVM: &libvirtxml.DomainFeatureKVM{Hidden: state("on")}}},
		"SMM": {withFeatures(v1.Features{SMM: &v1.FeatureState{}}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi, SMM: &libvirtxml.DomainFeatureSMM{State: "on"}}},
		"SMM off": {withFeatures(v1.Features{SMM: off()}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi, SMM: &libvirtxml.DomainFeatureSMM{State: "off"}}},
		"SMM for Secure Boot": {bootsEFI(true),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi, SMM: &libvirtxml.DomainFeatureSMM{State: "on"}}},
		"pvspinlock": {withFeatures(v1.Features{Pvspinlock: &v1.FeatureState{}}).kvm(),
			libvirtxml.DomainFeatureList{VMPort: vmport, ACPI: acpi, PVSpinlock: state("on")}},
		"pvspinlock off": {withFeatures(v1.Features{Pvspinlock: off()}),
			libvirtxml.DomainFeatureList{TCG: tcg, VMPort: vmport, ACPI: acpi, PVSpinlock: state("off")}},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, tc.guest.build(t).Features, &tc.want) })
	}
}

func TestFeaturesRefused(t *testing.T) {
	bootsEFI(false).domainSpec(func(d *v1.DomainSpec) { d.Features = &v1.Features{ACPI: *off()} }).
		expectRefused(t, "spec.domain.features.acpi.enabled", "UEFI")
	bootsEFI(true).domainSpec(func(d *v1.DomainSpec) { d.Features = &v1.Features{SMM: off()} }).
		expectRefused(t, "spec.domain.features.smm.enabled", "secureBoot")
	withFeatures(v1.Features{Pvspinlock: &v1.FeatureState{}}).
		expectRefused(t, "spec.domain.features.pvspinlock.enabled", "KVM")
}
