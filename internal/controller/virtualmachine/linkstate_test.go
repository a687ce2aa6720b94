// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"slices"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// TestLinkStates checks which states of an interface a running instance follows.
func TestLinkStates(t *testing.T) {
	const up, down, absent = v1.InterfaceStateLinkUp, v1.InterfaceStateLinkDown, v1.InterfaceStateAbsent
	for _, tc := range []struct {
		started, instance, now v1.InterfaceState
		want                   v1.InterfaceState
	}{
		{"", "", "", ""},
		{"", "", down, down},
		{"", down, "", ""},
		{down, down, up, up},
		{down, up, down, down},
		{"", "", absent, ""},
		{"", down, absent, down},
		{absent, absent, up, absent},
		{absent, absent, absent, absent},
	} {
		base := builder.MakeVM("vm").Template(builder.MakeVMI("vm").Masquerade().Multus("blue", "blue")).Obj().Spec.Template
		template, vmi := base.DeepCopy(), builder.MakeVMI("vm").Masquerade().Multus("blue", "blue").Obj()
		base.Spec.Domain.Devices.Interfaces[1].State = tc.started
		template.Spec.Domain.Devices.Interfaces[1].State = tc.now
		vmi.Spec.Domain.Devices.Interfaces[1].State = tc.instance
		for _, live := range []bool{true, false} {
			if got := compare(base, template, vmi, live, podspec.LiveMetadata{}).changed; len(got) > 0 {
				t.Errorf("from %q to %q, live %t: %v need a restart", tc.started, tc.now, live, got)
			}
		}
		liveupdate.CopyLinkStates(&vmi.Spec, &template.Spec)
		if got := vmi.Spec.Domain.Devices.Interfaces; got[1].State != tc.want || got[0].State != "" {
			t.Errorf("from %q to %q: got %q and %q, want %q", tc.instance, tc.now, got[0].State, got[1].State, tc.want)
		}
		if template.Spec.Domain.Devices.Interfaces[1].State != tc.now {
			t.Error("the template was changed")
		}
	}
}

// TestLinkStatesByName checks that interfaces are compared by their name, and that other changes still need a restart.
func TestLinkStatesByName(t *testing.T) {
	base := builder.MakeVM("vm").Template(builder.MakeVMI("vm").Masquerade().Multus("blue", "blue")).Obj().Spec.Template
	template, vmi := base.DeepCopy(), builder.MakeVMI("vm").Masquerade().Multus("blue", "blue").Obj()
	interfaces := template.Spec.Domain.Devices.Interfaces
	interfaces[0], interfaces[1] = interfaces[1], interfaces[0]
	interfaces[0].State, interfaces[1].State = v1.InterfaceStateLinkDown, v1.InterfaceStateLinkDown
	liveupdate.CopyLinkStates(&vmi.Spec, &template.Spec)
	if got := vmi.Spec.Domain.Devices.Interfaces; got[0].State != v1.InterfaceStateLinkDown ||
		got[1].State != v1.InterfaceStateLinkDown {
		t.Errorf("got %+v", got)
	}
	interfaces[0].Model = "e1000e"
	if got := compare(base, template, vmi, true, podspec.LiveMetadata{}); !slices.Equal(got.changed,
		[]string{"domain.devices.interfaces[blue].model", "domain.devices.interfaces"}) {
		t.Errorf("another model and another order: %+v", got)
	}
}
