// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

var _ = Describe("A guest's panic", Label("libvirt"), func() {
	It("is reported once", extended(3), func() {
		const image = launcherpod.EphemeralDisksDir + "/data.img"
		g := bootLinuxOn(newPod(), image, func(domain *libvirtxml.Domain) {
			domain.Devices.Panics = []libvirtxml.DomainPanic{{Model: "pvpanic"}}
		})
		var panics atomic.Int32
		conn := g.pod.dial(func(o *rpc.Options) {
			o.Panicked = func(vmi types.NamespacedName) {
				if vmi == podRef().VMI {
					panics.Add(1)
				}
			}
		})
		Expect(conn.Watch(GinkgoT().Context(), func() {})).To(Succeed())

		g.start("echo c >/proc/sysrq-trigger")
		Eventually(panics.Load).WithTimeout(time.Minute).Should(BeEquivalentTo(1))
		Eventually(func(gm Gomega) {
			domain, err := conn.Domain(GinkgoT().Context(), g.domain)
			gm.Expect(err).NotTo(HaveOccurred())
			gm.Expect(domain.Active()).To(BeFalse())
		}).WithTimeout(time.Minute).Should(Succeed())
		Expect(panics.Load()).To(BeEquivalentTo(1))
	})
})
