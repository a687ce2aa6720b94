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

const mib = 1 << 20

// letGrow lets a guest of 256 MiB have up to 1 GiB and more CPUs.
func letGrow(d *libvirtxml.Domain) {
	GinkgoHelper()
	grows := readDomain(filepath.Join(goldenDir, "memory-hotplug.xml"))
	d.VCPU, d.VCPUs, d.CPU, d.MaximumMemory = grows.VCPU, grows.VCPUs, grows.CPU, grows.MaximumMemory
	d.MaximumMemory.Value, d.CPU.Numa.Cell[0].Memory = 1024<<10, d.Memory.Value
	d.OS.Cmdline += " memhp_default_state=online_movable"
}

// plugged returns how many bytes the guest has taken from its memory device.
func (g *linux) plugged() uint64 {
	GinkgoHelper()
	found, err := g.conn.Domain(GinkgoT().Context(), g.domain)
	Expect(err).NotTo(HaveOccurred())
	Expect(found.AtBoot()).To(BeEquivalentTo(256 * mib))
	return found.Plugged
}

// attach plugs a memory device, and requests of the guest to take memory from it.
func (g *linux) attach(requestedKiB uint) {
	GinkgoHelper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("256Mi")),
		MaxGuest: ptr.To(resource.MustParse("1Gi"))}
	Expect(g.conn.AttachMemory(GinkgoT().Context(), g.domain, domain.MemoryDevice(vmi, 256<<10, requestedKiB))).
		To(Succeed())
}

// request changes how much memory the guest is to take.
func (g *linux) request(requestedKiB uint) {
	GinkgoHelper()
	found, err := g.conn.Domain(GinkgoT().Context(), g.domain)
	Expect(err).NotTo(HaveOccurred())
	device := found.MemoryDevice()
	device.Target.Requested.Value = requestedKiB
	Expect(g.conn.UpdateMemory(GinkgoT().Context(), g.domain, device)).To(Succeed())
}

var _ = Describe("A running Linux guest", Label("libvirt"), func() {
	// A guest that was restored, got CPUs and was reset has once not got the timer interrupts of its first CPU. Those that
	// had booted have twice not got those of another one, and did not boot again, of some hundred. Why is not known: QEMU
	// alone did not do it in 155 resets. A second attempt has a new guest.
	It("gets CPUs and memory, returns memory, and keeps both when it is reset", FlakeAttempts(2), func() {
		g := bootLinuxOn(newPod(), launcherpod.EphemeralDisksDir+"/data.img", letGrow)
		ctx := GinkgoT().Context()
		var events atomic.Int64
		Expect(g.conn.Watch(ctx, func() { events.Add(1) })).To(Succeed())
		memory := func() int {
			GinkgoHelper()
			kib, err := strconv.Atoi(strings.Fields(g.run("grep MemTotal /proc/meminfo"))[1])
			Expect(err).NotTo(HaveOccurred())
			return kib >> 10
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
		g.attach(256 << 10)
		Eventually(g.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(256 * mib))
		Expect(memory()).To(BeNumerically("~", has+256, 16))
		Expect(events.Load()).To(BeNumerically(">", 0), "libvirt's event about the size arrives")

		By("changing how much it gets")
		g.request(384 << 10)
		Eventually(g.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(384 * mib))
		events.Store(0)
		g.request(0)
		Eventually(g.plugged).WithTimeout(time.Minute).Should(BeZero())
		Expect(memory()).To(BeNumerically("~", has, 16))
		Expect(events.Load()).To(BeNumerically(">", 0))
		g.request(128 << 10)
		Eventually(g.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))

		By("resetting it")
		Expect(g.conn.Reset(ctx, g.domain)).To(Succeed())
		Eventually(func() int { return strings.Count(g.output.String(), "VIREO-GUEST-READY") }).
			WithTimeout(3 * time.Minute).Should(Equal(2))
		Eventually(g.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))
		Expect(g.cpus()).To(Equal(live.XML.VCPU.Value))
	})
})

var _ = Describe("A migration of a guest that was resized", Label("libvirt"), func() {
	It("keeps what was plugged, and the guest gets more on the target", extended(2), func() {
		m := newPodPairOf(letGrow)
		ctx := GinkgoT().Context()
		most := readDomain(filepath.Join(goldenDir, "memory-hotplug.xml")).VCPU.Value
		Expect(m.guest.conn.SetVCPUs(ctx, m.guest.domain, most-2)).To(Succeed())
		m.guest.attach(128 << 10)
		Eventually(m.guest.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))
		Expect(m.sourceConn.Transfer(ctx, m.request())).To(Succeed())
		migrated := m.resumeOnTarget()
		Expect(migrated.plugged()).To(BeEquivalentTo(128 * mib))
		Expect(migrated.cpus()).To(Equal(most - 2))

		migrated.request(256 << 10)
		Eventually(migrated.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(256 * mib))
		Expect(migrated.conn.SetVCPUs(ctx, migrated.domain, most)).To(Succeed())
		Eventually(migrated.cpus).WithTimeout(time.Minute).Should(Equal(most))
	})

	It("transfers a guest that has not grown, and grows on the target, where its new CPUs are pinned", extended(1),
		func() {
			m := newPodPairOf(letGrow)
			ctx := GinkgoT().Context()
			most := readDomain(filepath.Join(goldenDir, "memory-hotplug.xml")).VCPU.Value
			r := m.request()
			// The target's Pod has dedicated CPUs for the size that the guest is to get.
			r.XML.CPUTune = &libvirtxml.DomainCPUTune{}
			for id := range most {
				r.XML.CPUTune.VCPUPin = append(r.XML.CPUTune.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: id, CPUSet: "0"})
			}
			Expect(m.sourceConn.Transfer(ctx, r)).To(Succeed())
			migrated := m.resumeOnTarget()
			Expect(migrated.plugged()).To(BeZero())
			Expect(migrated.conn.SetVCPUs(ctx, migrated.domain, most)).To(Succeed())
			Eventually(migrated.cpus).WithTimeout(time.Minute).Should(Equal(most))
			live, err := migrated.conn.Domain(ctx, migrated.domain)
			Expect(err).NotTo(HaveOccurred())
			Expect(live.XML.CPUTune.VCPUPin).To(HaveLen(int(most)))
			migrated.attach(128 << 10)
			Eventually(migrated.plugged).WithTimeout(time.Minute).Should(BeEquivalentTo(128 * mib))
		})
})

// cpus returns the number of the guest's CPUs according to its ACPI tables. A Linux that runs in software emulation
// takes itself to be on bare hardware, and then uses no CPUs that were plugged after its start.
func (g *linux) cpus() uint {
	GinkgoHelper()
	count, err := strconv.ParseUint(strings.TrimSpace(g.run("cat /sys/bus/acpi/devices/LNXCPU:*/status | grep -cx 15")),
		10, 32)
	Expect(err).NotTo(HaveOccurred())
	return uint(count)
}
