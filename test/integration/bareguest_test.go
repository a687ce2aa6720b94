// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/test/bareguest"
	"github.com/vireo-project/vireo/test/libvirtd"
)

// bareGuestEnv names the environment variable with the path of the guest without an operating system
// (images/guest-bare).
const bareGuestEnv = "VIREO_BARE_GUEST"

// bareGuestTimeout is for what the guest does within a second on an idle machine. Where KVM interprets the guest's
// instructions, the BIOS takes three seconds of a processor.
const bareGuestTimeout = 2 * time.Minute

// rewritten is a number of pages that the guest has written only after it has rewritten all of its memory.
const rewritten = 3072

var _ = Describe("The guest without an operating system", func() {
	DescribeTable("counts, keeps its memory, finds a plugged processor, echoes, and powers off",
		func(accelerator, clock string) {
			g := startBareGuest(accelerator, "-cpu", "qemu64", "-smp", "1,sockets=2,cores=1,threads=1,maxcpus=2")
			g.write("hello")
			eventually(g.output.String).Should(ContainSubstring("hello"))
			eventually(g.reports).ShouldNot(BeEmpty())
			first := g.last()
			Expect(first.Clock).To(Equal(clock))
			Expect(first.CPUs).To(BeEquivalentTo(1))

			g.monitor("device_add qemu64-x86_64-cpu,socket-id=1,core-id=0,thread-id=0")
			eventually(func() uint32 { return g.last().CPUs }).Should(BeEquivalentTo(2))
			Expect(g.last().Ticks).To(BeNumerically(">", first.Ticks))
			g.expectConsistentReports()

			g.write(bareguest.KeyPowerOff)
			eventually(g.ended).Should(BeClosed())
			Expect(g.exit).NotTo(HaveOccurred())
		},
		Entry("in emulation", "tcg", "acpi"),
		Entry("under KVM", Label("kvm"), "kvm", "kvmclock"),
	)

	It("rewrites all of its memory, also after a reset, and powers off by the machine's button", func() {
		g := startBareGuest("tcg")
		eventually(g.reports).ShouldNot(BeEmpty())
		g.monitor("system_reset")
		eventually(func() int { return strings.Count(g.output.String(), bareguest.Ready) }).Should(Equal(2))
		g.before = strings.LastIndex(g.output.String(), bareguest.Ready)
		eventually(func() uint32 { return g.last().Written }).Should(BeNumerically(">", rewritten))
		g.expectConsistentReports()

		g.monitor("system_powerdown")
		eventually(g.ended).Should(BeClosed())
		Expect(g.exit).NotTo(HaveOccurred())
	})

	It("panics", func() {
		g := startBareGuest("tcg", "-device", "pvpanic", "-action", "panic=exit-failure")
		g.write(bareguest.KeyPanic)
		eventually(g.ended).Should(BeClosed())
		Expect(g.exit).To(HaveOccurred())
		eventually(g.output.String).Should(ContainSubstring("guest-bare: panic\r\n"))
	})

	It("executes what KVM cannot emulate", Label("kvm"), func() {
		g := startBareGuest("kvm")
		g.write(bareguest.KeyInternalError)
		eventually(func() string { return g.monitor("info status") }).Should(ContainSubstring("(internal-error)"))
		Expect(g.output.String()).NotTo(ContainSubstring("it was executed"))
	})
})

// eventually is Eventually with the time that the guest may take.
func eventually(actual any) AsyncAssertion { return Eventually(actual).WithTimeout(bareGuestTimeout) }

// bareGuest is a running QEMU with the guest.
type bareGuest struct {
	input  io.Writer
	output *transcript
	// before is the length of the output that is ignored.
	before int
	// socket is QEMU's monitor.
	socket string
	ended  chan struct{}
	// exit is set before ended is closed.
	exit error
}

// startBareGuest provides a guest that is ready. QEMU's own output is among that of the guest.
func startBareGuest(accelerator string, args ...string) *bareGuest {
	GinkgoHelper()
	guest := os.Getenv(bareGuestEnv)
	if guest == "" {
		Skip(bareGuestEnv + " is not set: it names the file of the guest")
	}
	if accelerator == "kvm" {
		kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
		if err != nil {
			Skip("no KVM: " + err.Error())
		}
		Expect(kvm.Close()).To(Succeed())
	}
	g := &bareGuest{socket: filepath.Join(GinkgoT().TempDir(), "monitor"), ended: make(chan struct{})}
	rootfs := os.Getenv(libvirtd.RootfsEnv)
	libraries := filepath.Join(rootfs, "usr/lib/x86_64-linux-gnu")
	cmd := exec.Command(filepath.Join(rootfs, "lib64/ld-linux-x86-64.so.2"), append([]string{
		"--library-path", libraries, filepath.Join(rootfs, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(rootfs, "usr/share/qemu"), "-L", filepath.Join(rootfs, "usr/share/seabios"),
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel", accelerator, "-m", "64",
		"-kernel", guest, "-serial", "stdio", "-monitor", "unix:" + g.socket + ",server=on,wait=off",
	}, args...)...)
	var err error
	g.input, err = cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	output, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	g.output = follow(output)
	Expect(cmd.Start()).To(Succeed())
	go func() {
		g.exit = cmd.Wait()
		_ = writer.Close()
		close(g.ended)
	}()
	DeferCleanup(func() {
		_ = cmd.Process.Kill()
		<-g.ended
		if CurrentSpecReport().Failed() {
			AddReportEntry("output of the guest and of QEMU", g.output.String())
		}
	})
	eventually(g.output.String).Should(ContainSubstring(bareguest.Ready))
	return g
}

// write writes to the guest's serial port.
func (g *bareGuest) write(text string) {
	GinkgoHelper()
	_, err := io.WriteString(g.input, text)
	Expect(err).NotTo(HaveOccurred())
}

// monitor gives a command to QEMU's monitor and returns what it answers.
func (g *bareGuest) monitor(command string) string {
	GinkgoHelper()
	conn, err := net.Dial("unix", g.socket)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = conn.Close() }()
	answer := follow(conn)
	const prompt = "(qemu) "
	eventually(answer.String).Should(HaveSuffix(prompt))
	greeting := len(answer.String())
	_, err = io.WriteString(conn, command+"\n")
	Expect(err).NotTo(HaveOccurred())
	eventually(func() string { return answer.String()[greeting:] }).Should(HaveSuffix("\n" + prompt))
	Expect(answer.String()[greeting:]).NotTo(ContainSubstring("\nError:"))
	return answer.String()[greeting:]
}

func (g *bareGuest) reports() []bareguest.Report {
	return bareguest.Reports(g.output.String()[g.before:])
}

// last returns the last report, or a zero one before the first.
func (g *bareGuest) last() bareguest.Report { return bareguest.Last(g.output.String()[g.before:]) }

// expectConsistentReports checks that no report is missing, that the counters grow, and that the guest's memory has
// what the guest has written.
func (g *bareGuest) expectConsistentReports() {
	GinkgoHelper()
	Expect(bareguest.Check(g.reports(), 0)).To(Succeed())
}
