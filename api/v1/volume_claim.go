// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// WrittenClaim is the name of the PersistentVolumeClaim with what the guest writes to a volume, or empty if none does:
// that of a claim, or of a DataVolume, whose claim has its name. A claim below an ephemeral overlay is only read.
func (v *Volume) WrittenClaim() string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	default:
		return ""
	}
}

// IsHotpluggable reports whether a volume may be plugged into a running guest and unplugged: that of a claim or a
// DataVolume whose hotpluggable is set.
func (v *Volume) IsHotpluggable() bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable ||
		v.DataVolume != nil && v.DataVolume.Hotpluggable
}
