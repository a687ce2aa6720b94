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
	"github.com/vireo-project/vireo/test/libvirtd"
)

// guestEnv names the environment variable with the directory of the small guest's kernel and initrd
// (hack/images/guest.sh).
const guestEnv = "VIREO_GUEST_BOOT"

// linux is a Linux guest with the real guest agent, and a shell on its serial console.
type linux struct {
	pod      *pod
	conn     *rpc.Conn
	domain   string
	console  io.ReadWriteCloser
	output   *transcript
	commands int
}

// dataSerial is the serial number of the guest's disk, by which the guest mounts it.
const dataSerial = "data"

// startLinux provides a guest that has booted, with an ext4 disk at /mnt/data.
func startLinux() *linux {
	GinkgoHelper()
	const image = launcherpod.EphemeralDisksDir + "/data.img"
	return startLinuxOn(newPod(), image, func(*libvirtxml.Domain) {})
}

// startLinuxOn provides a guest that has booted in a Pod, with its disk in a file of the Pod. adapt changes its
// domain, which must keep the one disk.
func startLinuxOn(p *pod, image string, adapt func(*libvirtxml.Domain)) *linux {
	GinkgoHelper()
	domain := linuxDomain(image)
	adapt(domain)
	booted := bootedLinux(domain)
	p.write(image, booted.disk)
	return booted.restoreIn(p, domain)
}

// bootLinuxOn boots the guest in a Pod, with its disk in a file of the Pod. adapt changes its domain.
func bootLinuxOn(p *pod, image string, adapt func(*libvirtxml.Domain)) *linux {
	GinkgoHelper()
	guestBoot()
	domain := linuxDomain(image)
	adapt(domain)
	p.write(image, ext4())
	return bootLinuxIn(p, domain)
}

// bootLinuxIn boots the guest in a Pod with its disk.
func bootLinuxIn(p *pod, domain *libvirtxml.Domain) *linux {
	GinkgoHelper()
	p.prepareKernel(guestBoot())
	g := &linux{pod: p}
	defined := p.define(domain)
	Expect(defined.Create()).To(Succeed())
	g.domain = domain.Name
	g.conn = p.dial()
	g.openConsole()
	Eventually(g.output.String).WithTimeout(3 * time.Minute).Should(ContainSubstring("VIREO-GUEST-READY"))
	return g
}

// openConsole opens the guest's console.
func (g *linux) openConsole() {
	GinkgoHelper()
	var err error
	g.console, err = g.conn.OpenConsole(GinkgoT().Context(), g.domain)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(g.console.Close)
	g.output = follow(g.console)
	heard := g.output
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			AddReportEntry("the guest's console", heard.String())
		}
	})
}

// guestBoot returns the directory with the guest's kernel and initrd.
func guestBoot() string {
	GinkgoHelper()
	boot := os.Getenv(guestEnv)
	if boot == "" {
		Skip(guestEnv + " is not set: it names the directory with a guest's kernel and initrd")
	}
	return boot
}

const linuxKernelDir = launcherpod.KernelBootDir + "/boot/"

// prepareKernel writes the guest's kernel and initrd to the Pod.
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
	if os.Getenv(libvirtd.KVMEnv) != "" {
		domain.Type, domain.Features.TCG = "kvm", nil
	}
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

// ext4 returns a file system of 16 MiB.
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

// start sends a command to the guest's shell.
func (g *linux) start(command string) {
	GinkgoHelper()
	_, err := io.WriteString(g.console, command+"\n")
	Expect(err).NotTo(HaveOccurred())
}

// run runs a command in the guest's shell and returns its output.
func (g *linux) run(command string) string {
	GinkgoHelper()
	g.commands++
	// The shell echoes the command: the command contains the marks in another form.
	begin, end := fmt.Sprintf("<%d:", g.commands), fmt.Sprintf(":%d>", g.commands)
	g.start(fmt.Sprintf("printf '<%%d:' %d; { %s; }; printf ':%%d>' %d", g.commands, command, g.commands))
	Eventually(g.output.String).WithTimeout(time.Minute).Should(ContainSubstring(end))
	_, output, _ := strings.Cut(g.output.String(), begin)
	output, _, _ = strings.Cut(output, end)
	return strings.ReplaceAll(output, "\r\n", "\n")
}

// prepareLines sets $lines in the guest's shell to files that together have that many MiB of lines with a text. The
// files are one and the same, as the guest takes a second to print a MiB in emulation.
func (g *linux) prepareLines(text string, mebibytes int) {
	GinkgoHelper()
	const printed = 64 << 10
	g.run(fmt.Sprintf("yes %s | head -c %d > /tmp/lines; lines=$(yes /tmp/lines | head -n %d)",
		text, printed, mebibytes<<20/printed))
}
