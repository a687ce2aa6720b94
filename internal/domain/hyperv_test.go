// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestHyperV(t *testing.T) {
	on := libvirtxml.DomainFeatureState{State: "on"}
	disabled := libvirtxml.DomainFeatureState{State: "off"}
	for name, tc := range map[string]struct {
		in   v1.FeatureHyperv
		want libvirtxml.DomainFeatureHyperV
	}{
		"plain features": {
			v1.FeatureHyperv{Relaxed: &v1.FeatureState{}, VAPIC: off(), IPI: &v1.FeatureState{Enabled: ptr.To(true)},
				EVMCS: &v1.FeatureState{}},
			libvirtxml.DomainFeatureHyperV{Relaxed: &on, VAPIC: &disabled, IPI: &on, EVMCS: &on},
		},
		"spinlocks": {
			v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{Retries: ptr.To[uint32](8191)}},
			libvirtxml.DomainFeatureHyperV{Spinlocks: &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: on,
				Retries: 8191}},
		},
		"spinlocks by default": {
			v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{}},
			libvirtxml.DomainFeatureHyperV{Spinlocks: &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: on,
				Retries: 4096}},
		},
		"spinlocks off": {
			v1.FeatureHyperv{Spinlocks: &v1.FeatureSpinlocks{FeatureState: *off()}},
			libvirtxml.DomainFeatureHyperV{Spinlocks: &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: disabled}},
		},
		"vendor": {
			v1.FeatureHyperv{VendorID: &v1.FeatureVendorID{VendorID: "Someone"}},
			libvirtxml.DomainFeatureHyperV{VendorId: &libvirtxml.DomainFeatureHyperVVendorId{DomainFeatureState: on,
				Value: "Someone"}},
		},
		"timer": {
			v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{Direct: &v1.FeatureState{}}},
			libvirtxml.DomainFeatureHyperV{STimer: &libvirtxml.DomainFeatureHyperVSTimer{DomainFeatureState: on, Direct: &on}},
		},
		"flush": {
			v1.FeatureHyperv{TLBFlush: &v1.TLBFlush{Direct: off(), Extended: &v1.FeatureState{}}},
			libvirtxml.DomainFeatureHyperV{TLBFlush: &libvirtxml.DomainFeatureHyperVTLBFlush{
				DomainFeatureState: on, Direct: &disabled, Extended: &on,
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expectEqual(t, withFeatures(v1.Features{Hyperv: &tc.in}).build(t).Features.HyperV, &tc.want)
		})
	}
}

func TestHyperVPassthrough(t *testing.T) {
	features := v1.Features{HypervPassthrough: &v1.HyperVPassthrough{}}
	expectEqual(t, withFeatures(features).kvm().build(t).Features.HyperV,
		&libvirtxml.DomainFeatureHyperV{Mode: "passthrough"})
	withFeatures(features).expectRefused(t, "spec.domain.features.hypervPassthrough", "KVM")
	features.Hyperv = &v1.FeatureHyperv{}
	withFeatures(features).kvm().expectRefused(t, "spec.domain.features.hypervPassthrough", "leave hyperv out")
}
