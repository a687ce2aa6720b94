// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// swtpmLog is what swtpm and its setup say, of which libvirt keeps one file for each domain.
const swtpmLog = launcherpod.RuntimeDir + "/cache/libvirt/qemu/log/default_testvmi-swtpm.log"

var _ = Describe("The state of a machine", Label("libvirt"), func() {
	It("has a TPM with certificates, which runs as the Pod's user", func() {
		p := newPod()
		p.start("tpm")
		pid, _ := process(p.daemon, "swtpm")
		info, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid)))
		Expect(err).NotTo(HaveOccurred())
		owner, ok := info.Sys().(*syscall.Stat_t)
		Expect(ok).To(BeTrue())
		Expect(owner.Uid).To(BeEquivalentTo(launcherpod.QEMUUser))
		Expect(p.read(swtpmLog)).To(And(
			ContainSubstring("Successfully authored TPM state"),
			ContainSubstring("Successfully created EK certificate locally"),
			ContainSubstring("Successfully created platform certificate locally")))
		Expect(p.daemon.Host(launcherpod.TPMAuthorityDir + "/signkey.pem")).To(BeARegularFile())
	})

	It("lasts in a claim from one Pod to the next", func() {
		nvram, tpm := launcherpod.NVRAMStateFile("testvmi"), launcherpod.TPMStateDir(goldenUUID)+"/tpm2-00.permall"
		first := newPod()
		guest := first.startPaused("tpm-persistent")
		Expect(first.read(swtpmLog)).To(ContainSubstring("Successfully authored TPM state"))
		template := first.sum(nvram)
		Expect(guest.Resume()).To(Succeed())
		Eventually(first.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring("BdsDxe"))
		Expect(guest.Destroy()).To(Succeed())
		variables, state := first.sum(nvram), first.sum(tpm)
		Expect(variables).NotTo(Equal(template), "the firmware wrote no variable")

		next := newPod()
		next.adoptState(first)
		guest = next.startPaused("tpm-persistent")
		Expect(next.sum(nvram)).To(Equal(variables), "the variables are others")
		Expect(next.sum(tpm)).To(Equal(state), "the TPM's state is another")
		Expect(next.read(swtpmLog)).NotTo(ContainSubstring("manufacturing"), "the TPM was made anew")
		Expect(guest.Resume()).To(Succeed())
		Eventually(next.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring("BdsDxe"))
	})
})

// goldenUUID is that of all golden domains.
const goldenUUID = "5d307ca9-b3ef-428c-8861-06e72d69f223"

func (p *pod) read(podPath string) string {
	GinkgoHelper()
	content, err := os.ReadFile(p.daemon.Host(podPath))
	Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// sum tells the content of a file from another, which is too long for a message.
func (p *pod) sum(podPath string) string {
	GinkgoHelper()
	return fmt.Sprintf("%x", sha256.Sum256([]byte(p.read(podPath))))
}

// startPaused runs a golden domain up to its first instruction.
func (p *pod) startPaused(golden string) *libvirt.Domain {
	GinkgoHelper()
	domain := readDomain(filepath.Join(goldenDir, golden+".xml"))
	p.prepare(domain)
	defined := p.define(domain)
	Expect(defined.CreateWithFlags(libvirt.DOMAIN_START_PAUSED)).To(Succeed())
	return defined
}

// adoptState mounts the claim of another Pod, so to say.
func (p *pod) adoptState(from *pod) {
	GinkgoHelper()
	to := p.daemon.Host(launcherpod.StateDir)
	Expect(os.RemoveAll(to)).To(Succeed())
	Expect(os.CopyFS(to, os.DirFS(from.daemon.Host(launcherpod.StateDir)))).To(Succeed())
	Expect(filepath.WalkDir(to, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)
	})).To(Succeed())
}
