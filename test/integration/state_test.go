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
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// swtpmLog is the log of swtpm and its setup, which libvirt writes for each domain.
const swtpmLog = launcherpod.RuntimeDir + "/cache/libvirt/qemu/log/default_testvmi-swtpm.log"

var _ = Describe("A domain with a TPM", Label("libvirt"), func() {
	It("gets certificates, and swtpm runs as the Pod's user", func() {
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

	It("keeps EFI variables and the TPM's state on a claim from one Pod to the next", extended(3), func() {
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
		Expect(next.sum(nvram)).To(Equal(variables), "the EFI variables were not kept")
		Expect(next.sum(tpm)).To(Equal(state), "the TPM's state was not kept")
		Expect(next.read(swtpmLog)).NotTo(ContainSubstring("manufacturing"), "a new TPM was created")
		Expect(guest.Resume()).To(Succeed())
		Eventually(next.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring("BdsDxe"))
	})
})

var _ = Describe("The migration of a domain with persistent state on a claim of each Pod", Label("libvirt"),
	extended(1), func() {
		const golden = "tpm-persistent"
		nvram, tpm := launcherpod.NVRAMStateFile("testvmi"), launcherpod.TPMStateDir(goldenUUID)+"/tpm2-00.permall"
		var (
			sourcePod, targetPod   *pod
			sourceConn, targetConn *rpc.Conn
			guest                  *libvirt.Domain
			request                hypervisor.TransferRequest
			// settled is the TPM's state on the target when KeepState has returned.
			settled string
		)
		BeforeEach(func(ctx SpecContext) {
			sourcePod, targetPod = newPod(), newPod()
			join(sourcePod, targetPod)
			guest = sourcePod.startPaused(golden)
			template := sourcePod.sum(nvram)
			Expect(guest.Resume()).To(Succeed())
			Eventually(sourcePod.daemon.Console).WithTimeout(3 * bootTimeout).Should(ContainSubstring("BdsDxe"))
			Expect(sourcePod.sum(nvram)).NotTo(Equal(template), "the firmware wrote no variable")
			sourceConn, targetConn = sourcePod.dial(), targetPod.dial()
			built := readDomain(filepath.Join(goldenDir, golden+".xml"))
			targetPod.prepare(built)
			live, err := sourceConn.LiveXML(ctx, built.Name)
			Expect(err).NotTo(HaveOccurred())
			definition, err := domain.ForTarget(live, built)
			Expect(err).NotTo(HaveOccurred())
			request = hypervisor.TransferRequest{
				Domain: built.Name, XML: definition, Address: targetAddress,
				DialTarget: func(ctx context.Context) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", targetPod.daemon.Socket())
				},
				BeforeFinish: func(ctx context.Context) error {
					Expect(targetPod.sum(nvram)).To(Equal(template), "the EFI variables are on the target before they were written")
					begin := time.Now()
					content, err := sourceConn.ReadNVRAM(ctx, nvram)
					if err != nil {
						return err
					}
					err = targetConn.KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram, TPM: launcherpod.TPMStateDir(goldenUUID)},
						content)
					AddReportEntry("state transferred in", time.Since(begin).String())
					settled = targetPod.sum(tpm)
					return err
				},
			}
		})

		It("has all state on the target before the transfer finishes, also if the guest never runs targetConn",
			func(ctx SpecContext) {
				before := sourcePod.sum(tpm)
				Expect(sourceConn.Transfer(ctx, request)).To(Succeed())
				Expect(targetConn.TargetState(ctx, request.Domain)).To(Equal(protocol.TargetComplete))
				Expect(targetPod.sum(nvram)).To(Equal(sourcePod.sum(nvram)))
				state := targetPod.sum(tpm)
				AddReportEntry("TPM", fmt.Sprintf("source before %.8s, after %.8s; target settled %.8s, complete %.8s", before,
					sourcePod.sum(tpm), settled, state))
				Expect(settled).To(Equal(state), "the TPM's state was not complete when KeepState returned")
				Expect(targetPod.read(swtpmLog)).NotTo(ContainSubstring("Successfully created EK certificate"),
					"a new TPM was created")
				Expect(targetConn.Destroy(ctx, request.Domain)).To(Succeed())

				next := newPod()
				next.adoptState(targetPod)
				started := next.startPaused(golden)
				Expect(next.sum(nvram)).To(Equal(sourcePod.sum(nvram)))
				Expect(next.sum(tpm)).To(Equal(state))
				Expect(next.read(swtpmLog)).NotTo(ContainSubstring("manufacturing"), "a new TPM was created")
				Expect(started.Resume()).To(Succeed())
				Eventually(next.daemon.Console).WithTimeout(3 * bootTimeout).Should(ContainSubstring("BdsDxe"))
			})

		It("fails if the state cannot be written, and keeps it when the guest runs on the target", func(ctx SpecContext) {
			full, failing := errors.New("the claim is full"), request
			failing.BeforeFinish = func(context.Context) error { return full }
			Expect(sourceConn.Transfer(ctx, failing)).To(MatchError(full))
			Expect(sourceConn.SourceState(ctx, request.Domain)).To(Equal(hypervisor.SourceState{Domain: protocol.SourceRunning}))
			Expect(targetConn.TargetState(ctx, request.Domain)).To(Equal(protocol.TargetAbsent))

			By("migrating")
			Expect(sourceConn.Transfer(ctx, request)).To(Succeed())
			moved := targetPod.sum(nvram)
			Expect(targetConn.ResumeTarget(ctx, request.Domain)).To(Succeed())
			Consistently(func() protocol.TargetDomain {
				state, err := targetConn.TargetState(ctx, request.Domain)
				Expect(err).NotTo(HaveOccurred())
				return state
			}).WithTimeout(2 * time.Second).Should(Equal(protocol.TargetRunning))
			Expect(targetPod.sum(nvram)).To(Equal(moved), "QEMU has changed the transferred variables")
		})

	})

var _ = Describe("Persistent state of a domain that is migrated", Label("libvirt"), extended(1), func() {
	const variables = "nvram"
	nvram := launcherpod.NVRAMStateFile("testvmi")

	It("is not written if the target's file is missing or too small, or the TPM's state is missing",
		func(ctx SpecContext) {
			empty := newPod().dial()
			Expect(empty.KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram}, []byte(variables))).
				To(MatchError(ContainSubstring("has not created the file")))
			Expect(empty.KeepState(ctx, hypervisor.StateFiles{TPM: launcherpod.TPMStateDir(goldenUUID)}, nil)).
				To(MatchError(ContainSubstring("TPM's state is not complete")))

			receiving := newPod()
			receiving.startPaused("tpm-persistent")
			Expect(receiving.dial().KeepState(ctx, hypervisor.StateFiles{NVRAM: nvram}, []byte(variables))).
				To(MatchError(ContainSubstring("has room for")))
		})
})

// goldenUUID is the UUID of all golden domains.
const goldenUUID = "5d307ca9-b3ef-428c-8861-06e72d69f223"

func (p *pod) read(podPath string) string {
	GinkgoHelper()
	content, err := os.ReadFile(p.daemon.Host(podPath))
	Expect(err).NotTo(HaveOccurred())
	return string(content)
}

// sum returns a digest of a file's content, which is too long for a failure message.
func (p *pod) sum(podPath string) string {
	GinkgoHelper()
	return fmt.Sprintf("%x", sha256.Sum256([]byte(p.read(podPath))))
}

// startPaused starts a golden domain paused, before its first instruction.
func (p *pod) startPaused(golden string) *libvirt.Domain {
	GinkgoHelper()
	domain := readDomain(filepath.Join(goldenDir, golden+".xml"))
	p.prepare(domain)
	defined := p.define(domain)
	Expect(defined.CreateWithFlags(libvirt.DOMAIN_START_PAUSED)).To(Succeed())
	return defined
}

// adoptState copies the claim with the state of another Pod, in place of mounting it.
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
