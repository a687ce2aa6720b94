// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/decide/machinetype"
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
