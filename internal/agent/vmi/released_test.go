// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

var _ = Describe("A release by another node's agent", func() {
	// The race detector finds what both use: nothing synchronizes the two from the read of the VMI on.
	It("shares no state with the reconciliation of the VMI", func() {
		launchers := libvirt.NewNode()
		a := startAgent(launchers)
		read, blocked := make(chan struct{}), make(chan struct{})
		onRead := func() { close(read) }
		a.afterRead.Store(&onRead)
		a.networks.blocked.Store(&blocked)
		g := makeGuest()
		var releases sync.WaitGroup
		releases.Go(func() {
			defer GinkgoRecover()
			<-read
			for range 100 {
				_, err := a.guests.RunReleased(ctx, client.ObjectKeyFromObject(g.vmi), types.UID("no-migration"))
				Expect(err).To(HaveOccurred())
			}
		})
		g.schedule(launchers)
		releases.Wait()
		close(blocked)
		g.assign().expectPhase(v1.Running)
	})
})
