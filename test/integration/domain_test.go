// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/test/libvirtd"
)

const goldenDir = "../../internal/domain/testdata"

// bootTimeout limits the wait for a guest's first output; UEFI needs seconds with software emulation.
const bootTimeout = time.Minute

// definedOnly contains golden domains that not every host with emulation can start, with the reason.
var definedOnly = map[string]string{
	"lun":           "a loop device does not accept SCSI commands",
	"hugepages":     "the host has no huge pages",
	"hugepages-1gi": "the host has no huge pages",
	"cpu-realtime":  "the host has no huge pages",
}

var _ = Describe("Golden domains", Label("libvirt"), Ordered, ContinueOnFailure, func() {
	files, err := filepath.Glob(filepath.Join(goldenDir, "*.xml"))
	if err != nil || len(files) == 0 {
		panic("no golden domains in internal/domain/testdata")
	}
	var p *pod
	BeforeAll(func() { p = newPod() })
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".xml")
		It("runs "+name, func() {
			domain := readDomain(file)
			p.prepare(domain)
			defined := p.define(domain)
			DeferCleanup(p.remove, defined)
			if _, found := definedOnly[name]; !found {
				p.expectStarts(defined)
			}
			expectKept(domain, definition(defined))
		})
	}
})

var _ = Describe("A running domain", Label("libvirt"), func() {
	It("writes its serial console to the launcher's pipe", func() {
		p := newPod()
		p.start("kernelboot")
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring(tinyKernelMessage))
	})

	It("boots from an overlay's backing file also if it is not the first disk", func() {
		p := newPod()
		p.image = bootableDisk()
		p.start("cloudinit-first")
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring(bootSectorMessage))
	})

	It("has the BIOS's output on its serial console", func() {
		p := newPod()
		p.start("devices")
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring("SeaBIOS"))
	})

	DescribeTable("runs UEFI", func(golden string) {
		p := newPod()
		p.start(golden)
		Eventually(p.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring("BdsDxe"))
	},
		Entry("without Secure Boot", "efi"),
		Entry("with Secure Boot", "efi-secureboot"),
	)

	It("provides its screen as a file descriptor, and has no listening TCP socket", func() {
		p := newPod()
		defined := p.start("minimal")
		Expect(readVNCBanner(defined)).To(HavePrefix("RFB 003."))
		Expect(listeners(p.daemon.PID())).To(BeEmpty())
	})

	It("has a limit for QEMU's cache of translated code", func() {
		p := newPod()
		p.start("minimal")
		_, args := process(p.daemon, "qemu-system-x86_64")
		Expect(args).To(ContainElement(MatchRegexp(`(^|,)tb-size=36(,|$)`)))
	})

	It("has free PCI ports for devices that are attached later", func() {
		p := newPod()
		defined := p.start("devices")
		for _, device := range []string{"rng0", "rng1", "rng2"} {
			Expect(defined.AttachDevice(`<rng model='virtio'><backend model='random'>/dev/urandom</backend><alias name='ua-`+device+`'/></rng>`)).
				To(Succeed(), device)
		}
	})
})

func readDomain(path string) *libvirtxml.Domain {
	GinkgoHelper()
	text, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	domain := &libvirtxml.Domain{}
	Expect(domain.Unmarshal(string(text))).To(Succeed())
	if domain.Type == "kvm" {
		// The tests have no KVM; the rest of the domain is the same.
		domain.Type = "qemu"
		for i := range domain.Devices.Interfaces {
			if driver := domain.Devices.Interfaces[i].Driver; driver != nil && driver.Name == "vhost" {
				driver.Name = "qemu"
			}
		}
	}
	return domain
}

// start runs a golden domain.
func (p *pod) start(golden string) *libvirt.Domain {
	GinkgoHelper()
	domain := readDomain(filepath.Join(goldenDir, golden+".xml"))
	p.prepare(domain)
	defined := p.define(domain)
	Expect(defined.Create()).To(Succeed())
	return defined
}

func (p *pod) define(domain *libvirtxml.Domain) *libvirt.Domain {
	GinkgoHelper()
	text, err := domain.Marshal()
	Expect(err).NotTo(HaveOccurred())
	defined, err := p.conn.DomainDefineXML(text)
	Expect(err).NotTo(HaveOccurred())
	return defined
}

// remove ends a domain and removes all that libvirt has of it.
func (p *pod) remove(domain *libvirt.Domain) {
	GinkgoHelper()
	active, err := domain.IsActive()
	Expect(err).NotTo(HaveOccurred())
	if active {
		Expect(domain.Destroy()).To(Succeed())
	}
	Expect(domain.UndefineFlags(libvirt.DOMAIN_UNDEFINE_NVRAM | libvirt.DOMAIN_UNDEFINE_TPM)).To(Succeed())
}

func (p *pod) expectStarts(domain *libvirt.Domain) {
	GinkgoHelper()
	Expect(domain.CreateWithFlags(libvirt.DOMAIN_START_PAUSED)).To(Succeed())
	Expect(domain.Resume()).To(Succeed())
	state, _, err := domain.GetState()
	Expect(err).NotTo(HaveOccurred())
	Expect(state).To(Equal(libvirt.DOMAIN_RUNNING))
}

func definition(domain *libvirt.Domain) *libvirtxml.Domain {
	GinkgoHelper()
	text, err := domain.GetXMLDesc(0)
	Expect(err).NotTo(HaveOccurred())
	parsed := &libvirtxml.Domain{}
	Expect(parsed.Unmarshal(text)).To(Succeed())
	return parsed
}

// expectKept fails if libvirt dropped or changed a device without an error.
func expectKept(requested, got *libvirtxml.Domain) {
	GinkgoHelper()
	Expect(got.UUID).To(Equal(requested.UUID))
	Expect(got.Memory.Value).To(Equal(requested.Memory.Value))
	Expect(got.Metadata.XML).To(ContainSubstring("7d9bdd2c-9e57-4c8f-a1d5-5a07b8f0a0b1"))
	// libvirt sorts disks by bus: they are identified by alias.
	disks := map[string]libvirtxml.DomainDisk{}
	for _, disk := range got.Devices.Disks {
		disks[disk.Alias.Name] = disk
	}
	Expect(got.Devices.Disks).To(HaveLen(len(requested.Devices.Disks)))
	for _, want := range requested.Devices.Disks {
		Expect(disks).To(HaveKey(want.Alias.Name))
		disk := disks[want.Alias.Name]
		Expect(disk.Target).To(Equal(want.Target), want.Alias.Name)
		Expect(disk.Driver).To(Equal(want.Driver), want.Alias.Name)
		Expect(disk.ReadOnly).To(Equal(want.ReadOnly), want.Alias.Name)
		Expect(disk.Boot).To(Equal(want.Boot), want.Alias.Name)
	}
	Expect(got.Devices.Interfaces).To(HaveLen(len(requested.Devices.Interfaces)))
	for i := range requested.Devices.Interfaces {
		Expect(got.Devices.Interfaces[i].Alias).To(Equal(requested.Devices.Interfaces[i].Alias))
		Expect(got.Devices.Interfaces[i].Model).To(Equal(requested.Devices.Interfaces[i].Model))
	}
	scsi := 0
	for _, controller := range got.Devices.Controllers {
		if controller.Type == "scsi" {
			scsi++
		}
	}
	Expect(scsi).To(BeNumerically("<=", 1), "libvirt added a SCSI controller")
}

// process returns a process of the Pod by the name of its program, and its arguments.
func process(daemon *libvirtd.Daemon, program string) (pid int, args []string) {
	GinkgoHelper()
	own, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(daemon.PID()), "ns", "pid"))
	Expect(err).NotTo(HaveOccurred())
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		// Other processes may end at any time.
		namespace, _ := os.Readlink(filepath.Join(filepath.Dir(file), "ns", "pid"))
		text, _ := os.ReadFile(file)
		args := strings.Split(string(text), "\x00")
		if namespace == own && filepath.Base(args[0]) == program {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			Expect(err).NotTo(HaveOccurred())
			return pid, args
		}
	}
	Fail(program + " does not run in the Pod")
	return 0, nil
}

// readVNCBanner opens a connection to the screen and reads the server's first line.
func readVNCBanner(domain *libvirt.Domain) string {
	GinkgoHelper()
	file, err := domain.OpenGraphicsFD(0, libvirt.DOMAIN_OPEN_GRAPHICS_SKIPAUTH)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	banner := make([]byte, len("RFB 003.008\n"))
	_, err = conn.Read(banner)
	Expect(err).NotTo(HaveOccurred())
	return string(banner)
}

// listeners returns the listening TCP sockets in the network namespace of a process.
func listeners(pid int) []string {
	GinkgoHelper()
	var found []string
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net", family))
		Expect(err).NotTo(HaveOccurred())
		for _, line := range strings.Split(string(text), "\n")[1:] {
			if fields := strings.Fields(line); len(fields) > 3 && fields[3] == tcpListen {
				found = append(found, fields[1])
			}
		}
	}
	return found
}

// tcpListen is the state of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
const tcpListen = "0A"
