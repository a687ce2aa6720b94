// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// maxLauncherStatus is more than a compromised launcher can add to a status without its guest.
const maxLauncherStatus = 8 << 10

// FuzzDomain checks that whatever domain a launcher reports, the status is limited, only the agent's own fields change,
// and a second reconcile changes nothing.
func FuzzDomain(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		d := &libvirtxml.Domain{}
		if d.Unmarshal(text) != nil {
			return
		}
		s := connectedGuest("", podNet("default"))
		s.Now, s.DomainRead, s.Assigned = time.Unix(1_700_000_000, 0), true, true
		s.use(&podCache{}, nil, nil)
		s.VMI.Status.Phase = "Running"
		s.Domain = &hypervisor.Domain{State: hypervisor.StateRunning, XML: d}
		s.Before = s.VMI.DeepCopy()
		computeStatus(s, nil)
		if _, err := vmistatus.Check(vmistatus.Handler, &s.Before.Status, &s.VMI.Status); err != nil {
			t.Error(err)
		}
		status, err := json.Marshal(s.VMI.Status)
		if err != nil || len(status) > maxLauncherStatus {
			t.Errorf("a status of %d bytes (%v)", len(status), err)
		}
		first := s.VMI.Status.DeepCopy()
		s.Now = s.Now.Add(time.Hour)
		computeStatus(s, nil)
		if diff := cmp.Diff(first, &s.VMI.Status); diff != "" {
			t.Errorf("the second time: %s", diff)
		}
	})
}
