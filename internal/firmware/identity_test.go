// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package firmware

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestSetIdentity(t *testing.T) {
	of := func(firmware *v1.Firmware, name, uid string, from Identity) v1.Firmware {
		spec := &v1.VirtualMachineInstanceSpec{}
		spec.Domain.Firmware = firmware
		SetIdentity(spec, name, types.UID(uid), from)
		return *spec.Domain.Firmware
	}
	for _, from := range []Identity{FromUID, FromName} {
		if diff := cmp.Diff(of(nil, "vm", "1", from), of(nil, "vm", "1", from)); diff != "" {
			t.Errorf("%s: another identity each time:\n%s", from, diff)
		}
		own := v1.Firmware{UUID: "5d307ca9-b3ef-428c-8861-06e72d69f223", Serial: "mine"}
		if diff := cmp.Diff(own, of(own.DeepCopy(), "vm", "1", from)); diff != "" {
			t.Errorf("%s: the template's own identity has changed:\n%s", from, diff)
		}
	}
	one, other := of(nil, "vm", "1", FromUID), of(nil, "vm", "2", FromUID)
	if one.UUID == other.UUID || one.Serial == other.Serial || one.Serial == "" || one.UUID == "1" {
		t.Errorf("two VMs of one name have %+v and %+v", one, other)
	}
	// The UUID that KubeVirt derives from this name.
	if diff := cmp.Diff(v1.Firmware{UUID: "d633a622-2335-5606-93ae-d432b7c7f2d2"}, of(nil, "vm", "1", FromName)); diff != "" {
		t.Error(diff)
	}
}
