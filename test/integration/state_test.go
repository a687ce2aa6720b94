// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/migration/protocol"
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

var _ = Describe("A machine whose state is in a claim of its Pod's own", Label("libvirt"), func() {
	const variables, golden = "nvram", "tpm-persistent"
	nvram, tpm := launcherpod.NVRAMStateFile("testvmi"), launcherpod.TPMStateDir(goldenUUID)+"/tpm2-00.permall"
	var (
		from, to    *pod
		here, there *rpc.Conn
		guest       *libvirt.Domain
		request     hypervisor.TransferRequest
		// settled is the TPM's state at the target when it is said to be there.
		settled string
	)
	BeforeEach(func(ctx SpecContext) {
		from, to = newPod(), newPod()
		join(from, to)
		guest = from.startPaused(golden)
		template := from.sum(nvram)
		Expect(guest.Resume()).To(Succeed())
		Eventually(from.daemon.Console).WithTimeout(3 * bootTimeout).Should(ContainSubstring("BdsDxe"))
		Expect(from.sum(nvram)).NotTo(Equal(template), "the firmware wrote no variable")
		here, there = from.dial(), to.dial()
		built := readDomain(filepath.Join(goldenDir, golden+".xml"))
		to.prepare(built)
		live, err := here.LiveXML(ctx, built.Name)
		Expect(err).NotTo(HaveOccurred())
		definition, err := domain.ForTarget(live, built)
		Expect(err).NotTo(HaveOccurred())
		request = hypervisor.TransferRequest{
			Domain: built.Name, XML: definition, Address: targetAddress,
			DialTarget: func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", to.daemon.Socket())
			},
			BeforeFinish: func(ctx context.Context) error {
				Expect(to.sum(nvram)).To(Equal(template), "what Settle is there for has happened without it")
				begin := time.Now()
				content, err := here.ReadNVRAM(ctx, nvram)
				if err != nil {
					return err
				}
				err = there.KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram, TPM: launcherpod.TPMStateDir(goldenUUID)}, content)
				AddReportEntry("state moved in", time.Since(begin).String())
				settled = to.sum(tpm)
				return err
			},
		}
	})

	It("has all of it at the target before the guest can be there, and a guest that never ran costs nothing", func(ctx SpecContext) {
		before := from.sum(tpm)
		Expect(here.Transfer(ctx, request)).To(Succeed())
		Expect(there.TargetState(ctx, request.Domain)).To(Equal(protocol.TargetComplete))
		Expect(to.sum(nvram)).To(Equal(from.sum(nvram)))
		state := to.sum(tpm)
		AddReportEntry("TPM", fmt.Sprintf("source before %.8s, after %.8s; target settled %.8s, complete %.8s", before, from.sum(tpm), settled, state))
		Expect(settled).To(Equal(state), "it was not complete when it was said to be")
		Expect(to.read(swtpmLog)).NotTo(ContainSubstring("Successfully created EK certificate"), "the TPM was made anew")
		Expect(there.Destroy(ctx, request.Domain)).To(Succeed())

		next := newPod()
		next.adoptState(to)
		started := next.startPaused(golden)
		Expect(next.sum(nvram)).To(Equal(from.sum(nvram)))
		Expect(next.sum(tpm)).To(Equal(state))
		Expect(next.read(swtpmLog)).NotTo(ContainSubstring("manufacturing"), "the TPM was made anew")
		Expect(started.Resume()).To(Succeed())
		Eventually(next.daemon.Console).WithTimeout(3 * bootTimeout).Should(ContainSubstring("BdsDxe"))
	})

	It("keeps it when the guest runs at the target, and comes back", func(ctx SpecContext) {
		Expect(here.Transfer(ctx, request)).To(Succeed())
		moved := to.sum(nvram)
		Expect(there.ResumeTarget(ctx, request.Domain)).To(Succeed())
		Consistently(func() protocol.TargetDomain {
			state, err := there.TargetState(ctx, request.Domain)
			Expect(err).NotTo(HaveOccurred())
			return state
		}).WithTimeout(2 * time.Second).Should(Equal(protocol.TargetRunning))
		Expect(to.sum(nvram)).To(Equal(moved), "QEMU wrote something else than what was moved")
	})

	It("stays with the guest when it cannot be moved", func(ctx SpecContext) {
		full := errors.New("the claim is full")
		request.BeforeFinish = func(context.Context) error { return full }
		Expect(here.Transfer(ctx, request)).To(MatchError(full))
		Expect(here.SourceState(ctx, request.Domain)).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
		Expect(there.TargetState(ctx, request.Domain)).To(Equal(protocol.TargetAbsent))
	})

	It("is not moved to a place that is too small, nor without the TPM's state", func(ctx SpecContext) {
		empty := newPod().dial()
		Expect(empty.KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram}, []byte(variables))).To(MatchError(ContainSubstring("has not created the file")))
		Expect(empty.KeepState(ctx, hypervisor.StateFiles{TPM: launcherpod.TPMStateDir(goldenUUID)}, nil)).
			To(MatchError(ContainSubstring("TPM's state has not arrived")))
		Expect(here.KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram}, []byte(variables))).To(MatchError(ContainSubstring("has room for")))
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
