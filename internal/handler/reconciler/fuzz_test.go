// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// FuzzNetworkStatus: of an annotation that more people than Multus can write, addresses are kept and nothing else.
func FuzzNetworkStatus(f *testing.F) {
	f.Fuzz(func(t *testing.T, annotation string) {
		pod := &corev1.Pod{}
		pod.Annotations = map[string]string{networkStatusAnnotation: annotation}
		for name, ips := range attachedNetworks(pod) {
			if len(ips) > maxNetworkIPs {
				t.Errorf("%s has %d addresses", name, len(ips))
			}
			for _, ip := range ips {
				if parsed, err := netip.ParseAddr(ip); err != nil || parsed.String() != ip || parsed.Zone() != "" {
					t.Errorf("%s has the address %q", name, ip)
				}
			}
		}
	})
}

// maxLauncherStatus is more than a launcher that lies can put into a status without the help of its guest.
const maxLauncherStatus = 8 << 10

// FuzzDomain: a launcher describes its domain as it likes. The status that comes of it is bounded, changes the agent's own fields only,
// and is the same the next time.
func FuzzDomain(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		d := &libvirtxml.Domain{}
		if d.Unmarshal(text) != nil {
			return
		}
		s := connectedGuest("", podNet("default"))
		s.now, s.looked, s.handedOver, s.memory = time.Unix(1_700_000_000, 0), true, true, &podMemory{}
		s.vmi.Status.Phase = "Running"
		s.domain = &hypervisor.Domain{State: hypervisor.StateRunning, XML: d}
		s.before = s.vmi.DeepCopy()
		computeStatus(s, nil)
		if _, err := vmistatus.Check(vmistatus.Handler, &s.before.Status, &s.vmi.Status); err != nil {
			t.Error(err)
		}
		status, err := json.Marshal(s.vmi.Status)
		if err != nil || len(status) > maxLauncherStatus {
			t.Errorf("a status of %d bytes (%v)", len(status), err)
		}
		first := s.vmi.Status.DeepCopy()
		s.now = s.now.Add(time.Hour)
		computeStatus(s, nil)
		if diff := cmp.Diff(first, &s.vmi.Status); diff != "" {
			t.Errorf("the second time: %s", diff)
		}
	})
}
