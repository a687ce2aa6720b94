// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/observe"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
	"github.com/vireo-project/vireo/internal/launcher"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

var _ = Describe("The launcher's QEMU", Label("libvirt"), func() {
	It("has each machine type that replaces one of Red Hat's", func() {
		_, connection := startLibvirtd()
		text, err := connection.GetCapabilities()
		Expect(err).NotTo(HaveOccurred())
		host := &libvirtxml.Caps{}
		Expect(host.Unmarshal(text)).To(Succeed())
		has := map[string]bool{}
		for _, guest := range host.Guests {
			for _, machine := range guest.Arch.Machines {
				has[machine.Name] = true
			}
		}
		for major := 7; major <= 11; major++ {
			for minor := range 11 {
				name := fmt.Sprintf("pc-q35-rhel%d.%d.0", major, minor)
				Expect(has).To(HaveKey(machinetype.ForStart(name)), name)
			}
		}
	})
})

var _ = Describe("The probe of a node", Label("libvirt"), func() {
	It("writes all features of the CPU that a guest with host-model gets", func() {
		daemon, connection := startLibvirtd()
		capabilities, err := connection.GetDomainCapabilities("", "", "q35", "", 0)
		Expect(err).NotTo(HaveOccurred())
		var reported libvirtxml.DomainCaps
		Expect(reported.Unmarshal(capabilities)).To(Succeed())
		dir := GinkgoT().TempDir()
		client, err := libvirtwire.Dial(GinkgoT().Context(), daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(client.Close)
		Expect(launcher.SaveCapabilities(GinkgoT().Context(), client, dir)).To(Succeed())

		report, err := observe.ReadCapabilities(dir, "amd64")
		Expect(err).NotTo(HaveOccurred())
		Expect(report.HostModel).NotTo(BeEmpty())
		Expect(report.CPUFeatures).To(ContainElements(report.HostModelFeatures))
		Expect(report.CPUFeatures).To(ContainElements("sse2", "fpu"), "features of the model")
		Expect(report.KnownCPUModels).To(ContainElements(report.CPUModels))
		Expect(len(report.KnownCPUModels)).To(BeNumerically(">", len(report.CPUModels)))
	})
})
