// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler_test

import (
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/fake"
)

var _ = Describe("A release by another node's agent", func() {
	// The race detector finds what both use.
	It("shares no state with the reconciliation of the VMI", func() {
		launchers := fake.NewNode()
		a := startAgent(launchers)
		g := makeGuest()
		var releases sync.WaitGroup
		stop := make(chan struct{})
		releases.Go(func() {
			defer GinkgoRecover()
			for range 10000 {
				select {
				case <-stop:
					return
				default:
					_, err := a.guests.RunReleased(ctx, client.ObjectKeyFromObject(g.vmi), types.UID("no-migration"))
					Expect(err).To(HaveOccurred())
				}
			}
		})
		g.schedule(launchers)
		g.settle()
		g.assign().expectPhase(v1.Running)
		g.removePod()
		Eventually(func() int { return len(a.guests.Monitored()) }).Should(BeZero())
		close(stop)
		releases.Wait()
	})
})
