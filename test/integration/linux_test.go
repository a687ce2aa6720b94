// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// guestEnv names the environment variable with the folder of the small guest's kernel and initrd (hack/images/guest.sh).
const guestEnv = "VIREO_GUEST_BOOT"

// linux is a Linux guest with the real guest agent, and a shell on its serial console.
type linux struct {
	pod     *pod
	conn    *rpc.Conn
	domain  string
	console io.ReadWriteCloser
	heard   *transcript
	asked   int
}

// dataSerial is the serial number of the guest's disk, which it mounts by.
const dataSerial = "data"

// bootLinux boots a guest with an ext4 disk at /mnt/data.
func bootLinux() *linux {
	GinkgoHelper()
	const image = launcherpod.EphemeralDisksDir + "/data.img"
	return bootLinuxOn(newPod(), image, func(*libvirtxml.Domain) {})
}

// bootLinuxOn boots the guest in a Pod, with its disk in a file of the Pod and with what adapt makes of its domain.
func bootLinuxOn(p *pod, image string, adapt func(*libvirtxml.Domain)) *linux {
	GinkgoHelper()
	guestBoot()
	domain := linuxDomain(image)
	adapt(domain)
	p.write(image, ext4())
	return bootLinuxIn(p, domain)
}

// bootLinuxIn boots the guest in a Pod that has its disk.
func bootLinuxIn(p *pod, domain *libvirtxml.Domain) *linux {
	GinkgoHelper()
	p.prepareKernel(guestBoot())
	g := &linux{pod: p}
	defined := p.define(domain)
	Expect(defined.Create()).To(Succeed())
	g.domain = domain.Name
	g.conn = p.dial()
	g.listen()
	Eventually(g.heard.String).WithTimeout(3 * time.Minute).Should(ContainSubstring("VIREO-GUEST-READY"))
	return g
}

// listen opens the guest's console.
func (g *linux) listen() {
	GinkgoHelper()
	var err error
	g.console, err = g.conn.OpenConsole(GinkgoT().Context(), g.domain)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(g.console.Close)
	g.heard = follow(g.console)
	heard := g.heard
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			AddReportEntry("what the guest said", heard.String())
		}
	})
}

// guestBoot is the folder with the guest's kernel and initrd.
func guestBoot() string {
	GinkgoHelper()
	boot := os.Getenv(guestEnv)
	if boot == "" {
		Skip(guestEnv + " is not set: it names the folder with a guest's kernel and initrd")
	}
	return boot
}

const linuxKernelDir = launcherpod.KernelBootDir + "/boot/"

// prepareKernel puts the guest's kernel and initrd into the Pod.
func (p *pod) prepareKernel(boot string) {
	GinkgoHelper()
	for _, file := range []string{"vmlinuz", "initrd.img"} {
		content, err := os.ReadFile(filepath.Join(boot, file))
		Expect(err).NotTo(HaveOccurred())
		p.write(linuxKernelDir+file, content)
	}
}

func linuxDomain(image string) *libvirtxml.Domain {
	GinkgoHelper()
	domain := readDomain(filepath.Join(goldenDir, "kernelboot.xml"))
	domain.Memory.Value, domain.CurrentMemory.Value = 256<<10, 256<<10
	domain.OS.Initrd = linuxKernelDir + "initrd.img"
	domain.OS.Cmdline = "console=tty0 console=ttyS0,115200n8 loglevel=4 panic=10 mitigations=off"
	domain.Devices.Disks = []libvirtxml.DomainDisk{{
		Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: image}},
		Target: &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"}, Serial: dataSerial,
	}}
	return domain
}

// ext4 is a file system of 16 MiB.
func ext4() []byte {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "ext4")
	Expect(os.WriteFile(path, make([]byte, 16<<20), 0o600)).To(Succeed())
	out, err := exec.Command("/usr/sbin/mkfs.ext4", "-q", path).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	content, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	return content
}

// start gives the guest's shell a command.
func (g *linux) start(command string) {
	GinkgoHelper()
	_, err := io.WriteString(g.console, command+"\n")
	Expect(err).NotTo(HaveOccurred())
}

// run gives the guest's shell a command and returns what it wrote.
func (g *linux) run(command string) string {
	GinkgoHelper()
	g.asked++
	// The shell echoes the command: the marks are written so that only their outcome looks like them.
	begin, end := fmt.Sprintf("<%d:", g.asked), fmt.Sprintf(":%d>", g.asked)
	g.start(fmt.Sprintf("printf '<%%d:' %d; { %s; }; printf ':%%d>' %d", g.asked, command, g.asked))
	Eventually(g.heard.String).WithTimeout(time.Minute).Should(ContainSubstring(end))
	_, answer, _ := strings.Cut(g.heard.String(), begin)
	answer, _, _ = strings.Cut(answer, end)
	return strings.ReplaceAll(answer, "\r\n", "\n")
}
