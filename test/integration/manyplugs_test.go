// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

var _ = Describe("Very many hotplugged disks", Label("libvirt"), func() {
	It("are plugged and unplugged: on the SCSI bus 75, on the virtio bus one for each free port", func() {
		p := newPod()
		definition := readDomain(filepath.Join(goldenDir, "kernelboot.xml"))
		p.prepare(definition)
		Expect(p.define(definition).Create()).To(Succeed())
		conn, ctx := p.dial(), GinkgoT().Context()
		vmi := &v1.VirtualMachineInstance{}
		facts := domain.Facts{Disks: map[string]domain.DiskFact{}}
		add := func(bus v1.DiskBus, number int) {
			name := fmt.Sprintf("%s-%d", bus, number)
			path := launcherpod.HotplugDisk(name, false)
			p.write(path, make([]byte, diskBytes))
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{
				Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}},
			})
			facts.Disks[name] = domain.DiskFact{Path: path, Format: hypervisor.FormatRaw}
		}
		pending := func() []domain.Operation {
			GinkgoHelper()
			live, err := conn.Domain(ctx, definition.Name)
			Expect(err).NotTo(HaveOccurred())
			Expect(live.Active()).To(BeTrue())
			desired, err := domain.PluggedDisks(vmi, facts)
			Expect(err).NotTo(HaveOccurred())
			return domain.DiffDisks(desired, live.XML, nil)
		}
		carryOut := func(want int) {
			GinkgoHelper()
			operations := pending()
			Expect(operations).To(HaveLen(want))
			for _, o := range operations {
				Expect(conn.ChangeDisk(ctx, definition.Name, o)).To(Succeed(), o.Name)
			}
		}

		const many = 75
		for i := range many {
			add(v1.DiskBusSCSI, i)
		}
		begin := time.Now()
		carryOut(many)
		AddReportEntry(fmt.Sprintf("%d disks plugged in", many), time.Since(begin).String())
		Expect(pending()).To(BeEmpty())

		By("filling the ports")
		var refusal error
		ports := 0
		for ; refusal == nil && ports < 20; ports++ {
			add(v1.DiskBusVirtio, ports)
			operations := pending()
			Expect(operations).To(HaveLen(1))
			refusal = conn.ChangeDisk(ctx, definition.Name, operations[0])
		}
		Expect(refusal).To(MatchError(ContainSubstring("No more available PCI slots")))
		Expect(ports-1).To(BeNumerically(">=", 3), "there are always three free ports")
		AddReportEntry("disks on the virtio bus", fmt.Sprint(ports-1))

		By("unplugging those on the SCSI bus, beside the one that does not fit")
		disks := vmi.Spec.Domain.Devices.Disks
		vmi.Spec.Domain.Devices.Disks = disks[many : len(disks)-1]
		carryOut(many)
		Eventually(pending).WithTimeout(time.Minute).Should(BeEmpty())
	})
})
