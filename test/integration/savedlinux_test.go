// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// savedLinux is a guest that was saved after its boot, which takes seven seconds of CPU time in emulation. Restoring
// it takes one. So the specs for which the boot does not matter share it, and each has a guest of its own.
type savedLinux struct {
	// memory is the path of libvirt's file with the guest's memory and devices, and xml the domain in it.
	memory, xml string
	// disk is the content of the guest's disk, which it has mounted.
	disk []byte
}

// booted has the saved guests by their domains, without what the guest does not see.
var booted = map[string]*savedLinux{}

// savedMemory is the path of a file with a guest's memory in a Pod.
const savedMemory = launcherpod.EphemeralDisksDir + "/booted.memory"

// bootedLinux returns a saved guest for a domain with one disk. The first call for the guest's devices boots it.
func bootedLinux(domain *libvirtxml.Domain) *savedLinux {
	GinkgoHelper()
	guestBoot()
	key := seenByGuest(domain)
	if booted[key] == nil {
		booted[key] = saveLinux(domain)
	}
	return booted[key]
}

// seenByGuest returns a domain's XML without what the guest does not see of its disks.
func seenByGuest(domain *libvirtxml.Domain) string {
	GinkgoHelper()
	seen := copyOf(domain)
	for i := range seen.Devices.Disks {
		setBackend(&seen.Devices.Disks[i], &libvirtxml.DomainDisk{})
	}
	text, err := seen.Marshal()
	Expect(err).NotTo(HaveOccurred())
	return text
}

func copyOf(domain *libvirtxml.Domain) *libvirtxml.Domain {
	GinkgoHelper()
	text, err := domain.Marshal()
	Expect(err).NotTo(HaveOccurred())
	copied := &libvirtxml.Domain{}
	Expect(copied.Unmarshal(text)).To(Succeed())
	return copied
}

// setBackend gives a disk the image of another one. The guest sees no difference if both images have the same content.
func setBackend(disk, from *libvirtxml.DomainDisk) {
	disk.Driver, disk.Source, disk.BackingStore, disk.Alias = from.Driver, from.Source, from.BackingStore, from.Alias
}

// saveLinux boots a guest in a Pod of its own, with a file system on its disk, and saves it.
func saveLinux(domain *libvirtxml.Domain) *savedLinux {
	GinkgoHelper()
	const image = launcherpod.EphemeralDisksDir + "/data.img"
	Expect(domain.Devices.Disks).To(HaveLen(1))
	p, domain := newPod(), copyOf(domain)
	setBackend(&domain.Devices.Disks[0], &linuxDomain(image).Devices.Disks[0])
	p.write(image, ext4())
	g := bootLinuxIn(p, domain)
	g.run("sync")
	running, err := p.conn.LookupDomainByName(g.domain)
	Expect(err).NotTo(HaveOccurred())
	Expect(running.Save(savedMemory)).To(Succeed())
	s := &savedLinux{memory: filepath.Join(savedDir, fmt.Sprintf("memory-%d", len(booted)))}
	s.xml, err = p.conn.DomainSaveImageGetXMLDesc(savedMemory, 0)
	Expect(err).NotTo(HaveOccurred())
	Expect(os.Link(p.daemon.Host(savedMemory), s.memory)).To(Succeed())
	s.disk, err = os.ReadFile(p.daemon.Host(image))
	Expect(err).NotTo(HaveOccurred())
	return s
}

// restoreIn continues the guest in a Pod in which the image of its disk has the saved content.
func (s *savedLinux) restoreIn(p *pod, domain *libvirtxml.Domain) *linux {
	GinkgoHelper()
	p.prepareKernel(guestBoot())
	p.define(domain)
	restored := &libvirtxml.Domain{}
	Expect(restored.Unmarshal(s.xml)).To(Succeed())
	setBackend(&restored.Devices.Disks[0], &domain.Devices.Disks[0])
	text, err := restored.Marshal()
	Expect(err).NotTo(HaveOccurred())
	memory := p.daemon.Host(savedMemory)
	Expect(os.Link(s.memory, memory)).To(Succeed())
	Expect(p.conn.DomainRestoreFlags(savedMemory, text, libvirt.DOMAIN_SAVE_RUNNING)).To(Succeed())
	Expect(os.Remove(memory)).To(Succeed())
	g := &linux{pod: p, conn: p.dial(), domain: domain.Name}
	g.openConsole()
	return g
}
