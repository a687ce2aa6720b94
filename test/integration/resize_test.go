// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

var _ = Describe("A running Linux guest", Label("libvirt"), func() {
	const mib = 1 << 20
	It("gets CPUs and memory, returns memory, and keeps both when it is reset", func() {
		g := bootLinuxOn(newPod(), launcherpod.EphemeralDisksDir+"/data.img", func(d *libvirtxml.Domain) {
			grows := readDomain(filepath.Join(goldenDir, "memory-hotplug.xml"))
			d.VCPU, d.VCPUs, d.CPU, d.MaximumMemory = grows.VCPU, grows.VCPUs, grows.CPU, grows.MaximumMemory
			d.MaximumMemory.Value, d.CPU.Numa.Cell[0].Memory = 1024<<10, d.Memory.Value
			d.OS.Cmdline += " memhp_default_state=online_movable"
		})
		ctx := GinkgoT().Context()
		var events atomic.Int64
		Expect(g.conn.Watch(ctx, func() { events.Add(1) })).To(Succeed())
		memory := func() int {
			GinkgoHelper()
			kib, err := strconv.Atoi(strings.Fields(g.run("grep MemTotal /proc/meminfo"))[1])
			Expect(err).NotTo(HaveOccurred())
			return kib >> 10
		}
		plugged := func() uint64 {
			GinkgoHelper()
			found, err := g.conn.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			Expect(found.AtBoot()).To(BeEquivalentTo(256 * mib))
			return found.Plugged
		}

		By("plugging CPUs")
		live, err := g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(g.cpus()).To(Equal(live.XML.VCPU.Current))
		Expect(g.conn.SetVCPUs(ctx, g.domain, live.XML.VCPU.Value)).To(Succeed())
		Eventually(g.cpus).WithTimeout(time.Minute).Should(Equal(live.XML.VCPU.Value))
		Expect(g.conn.SetVCPUs(ctx, g.domain, live.XML.VCPU.Value+1)).NotTo(Succeed())

		By("plugging memory")
		has := memory()
		events.Store(0)
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("256Mi")), MaxGuest: ptr.To(resource.MustParse("1Gi"))}
		Expect(g.conn.AttachMemory(ctx, g.domain, domain.MemoryDevice(vmi, 256<<10, 256<<10))).To(Succeed())
		Eventually(plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(256 * mib))
		Expect(memory()).To(BeNumerically("~", has+256, 16))
		Expect(events.Load()).To(BeNumerically(">", 0), "libvirt's event about the size arrives")

		By("changing how much it gets")
		request := func(size uint) {
			GinkgoHelper()
			found, err := g.conn.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			device := found.MemoryDevice()
			device.Target.Requested.Value = size
			Expect(g.conn.UpdateMemory(ctx, g.domain, device)).To(Succeed())
		}
		request(384 << 10)
		Eventually(plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(384 * mib))
		events.Store(0)
		request(0)
		Eventually(plugged).WithTimeout(time.Minute).Should(BeZero())
		Expect(memory()).To(BeNumerically("~", has, 16))
		Expect(events.Load()).To(BeNumerically(">", 0))
		request(128 << 10)
		Eventually(plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))

		By("resetting it")
		Expect(g.conn.Reset(ctx, g.domain)).To(Succeed())
		Eventually(func() int { return strings.Count(g.output.String(), "VIREO-GUEST-READY") }).WithTimeout(3 * time.Minute).Should(Equal(2))
		Eventually(plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))
		Expect(g.cpus()).To(Equal(live.XML.VCPU.Value))
	})
})

// cpus returns the number of the guest's CPUs according to its ACPI tables. A Linux that runs in software emulation takes itself to be
// on bare hardware, and then uses no CPUs that were plugged after its start.
func (g *linux) cpus() uint {
	GinkgoHelper()
	count, err := strconv.ParseUint(strings.TrimSpace(g.run("cat /sys/bus/acpi/devices/LNXCPU:*/status | grep -cx 15")), 10, 32)
	Expect(err).NotTo(HaveOccurred())
	return uint(count)
}
