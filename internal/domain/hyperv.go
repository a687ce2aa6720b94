// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// defaultSpinlockRetries is KubeVirt's default of features.hyperv.spinlocks.spinlocks.
const defaultSpinlockRetries = 4096

// configureHyperV sets the Hyper-V enlightenments.
func configureHyperV(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	features := vmi.Spec.Domain.Features
	if features == nil || domain.Features == nil {
		return nil
	}
	if passthrough := features.HypervPassthrough; passthrough != nil && enabled(passthrough.Enabled) {
		path := featuresPath.Child("hypervPassthrough")
		if facts.Emulation {
			return field.Invalid(path, true, "needs KVM and the guest's CPU is emulated: name the features in hyperv instead")
		}
		if features.Hyperv != nil {
			return field.Invalid(path, true, "it passes all features through: leave hyperv out")
		}
		domain.Features.HyperV = &libvirtxml.DomainFeatureHyperV{Mode: "passthrough"}
		return nil
	}
	if features.Hyperv != nil {
		domain.Features.HyperV = hypervFeatures(features.Hyperv)
	}
	return nil
}

func hypervFeatures(in *v1.FeatureHyperv) *libvirtxml.DomainFeatureHyperV {
	out := &libvirtxml.DomainFeatureHyperV{
		Relaxed:         featureState(in.Relaxed),
		VAPIC:           featureState(in.VAPIC),
		VPIndex:         featureState(in.VPIndex),
		Runtime:         featureState(in.Runtime),
		Synic:           featureState(in.SyNIC),
		Reset:           featureState(in.Reset),
		Frequencies:     featureState(in.Frequencies),
		ReEnlightenment: featureState(in.Reenlightenment),
		IPI:             featureState(in.IPI),
		EVMCS:           featureState(in.EVMCS),
	}
	if in.Spinlocks != nil {
		out.Spinlocks = &libvirtxml.DomainFeatureHyperVSpinlocks{DomainFeatureState: *featureState(
			&in.Spinlocks.FeatureState)}
		if enabled(in.Spinlocks.Enabled) {
			out.Spinlocks.Retries = defaultSpinlockRetries
			if in.Spinlocks.Retries != nil {
				out.Spinlocks.Retries = uint(*in.Spinlocks.Retries)
			}
		}
	}
	if in.SyNICTimer != nil {
		out.STimer = &libvirtxml.DomainFeatureHyperVSTimer{
			DomainFeatureState: *featureState(&in.SyNICTimer.FeatureState),
			Direct:             featureState(in.SyNICTimer.Direct),
		}
	}
	if in.VendorID != nil {
		out.VendorId = &libvirtxml.DomainFeatureHyperVVendorId{
			DomainFeatureState: *featureState(&in.VendorID.FeatureState), Value: in.VendorID.VendorID,
		}
	}
	if in.TLBFlush != nil {
		out.TLBFlush = &libvirtxml.DomainFeatureHyperVTLBFlush{
			DomainFeatureState: *featureState(&in.TLBFlush.FeatureState),
			Direct:             featureState(in.TLBFlush.Direct),
			Extended:           featureState(in.TLBFlush.Extended),
		}
	}
	return out
}

func featureState(state *v1.FeatureState) *libvirtxml.DomainFeatureState {
	if state == nil {
		return nil
	}
	return &libvirtxml.DomainFeatureState{State: onOff(enabled(state.Enabled))}
}
