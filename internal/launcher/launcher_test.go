// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"

	"github.com/vireo-project/vireo/internal/launcher/tail"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// A guest without a disk: its firmware ignores every request to power off.
const tinyDomain = `<domain type='qemu'>
  <name>default_test</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>destroy</on_crash>
  <devices><emulator>/usr/bin/qemu-system-x86_64</emulator><controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='pty'><log file='/var/run/libvirt/console.fifo' append='on'/></serial>
    </devices>
</domain>`

// maxRSS is the launcher's memory budget.
const maxRSS = 15 << 10

// startDomain defines and starts the domain, like the node agent.
func startDomain(t *testing.T, p *pod) *libvirt.Domain {
	t.Helper()
	return startDomainOf(t, p, tinyDomain)
}

func startDomainOf(t *testing.T, p *pod, xml string) *libvirt.Domain {
	t.Helper()
	t.Setenv("LIBVIRT_AUTOSTART", "0")
	var conn *libvirt.Connect
	begin := time.Now()
	p.eventually("libvirtd responds", func() bool {
		var err error
		conn, err = libvirt.NewConnect("qemu:///session?socket=" + p.socket())
		return err == nil
	})
	t.Logf("libvirtd responded after %s", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() { _, _ = conn.Close() })
	domain, err := conn.DomainDefineXML(xml)
	if err == nil {
		err = domain.Create()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = domain.Free() })
	p.eventually("the launcher detects the guest",
		func() bool { return strings.Contains(string(p.stderr.Contents()), "The guest runs") })
	return domain
}

// A TPM works with a read-only root and without privileges, and is stopped with the guest.
func TestTPM(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "0", "-v", "0")
	startDomainOf(t, p, strings.Replace(tinyDomain, "</devices>",
		"<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm></devices>", 1))
	for _, file := range []string{"swtpm-localca/signkey.pem", "config/libvirt/qemu/swtpm"} {
		if _, err := os.Stat(p.runtime(file)); err != nil {
			t.Error(err)
		}
	}
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeDestroyed)
	if log := string(p.stderr.Contents()); strings.Contains(log, "swtpm") {
		t.Errorf("a harmless message about swtpm is in the Pod's log:\n%s", log)
	}
}

func TestLibvirtLogFilters(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "0", "-v", "0", "--libvirt-log-filters",
		"3:rpc 3:util.object 1:qemu 3:qemu.qemu_monitor")
	startDomain(t, p)
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeDestroyed)
	log := string(p.stderr.Contents())
	if !strings.Contains(log, ": debug : qemuProcessLaunch:") {
		t.Error("messages that pass the filters are not in the log")
	}
	for _, source := range []string{"virNetServer", "virObjectRef", "qemuMonitorIOProcess"} {
		if strings.Contains(log, ": debug : "+source) {
			t.Errorf("messages of %s are in the log", source)
		}
	}
}

// libvirtd does not start with malformed filters.
func TestMalformedLibvirtLogFilters(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "0", "--libvirt-log-filters", "1:qemu nonsense")
	startDomain(t, p)
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeDestroyed)
	if log := string(p.stderr.Contents()); strings.Contains(log, ": debug : ") ||
		!strings.Contains(log, "is no log filter") {
		t.Errorf("the log has debug messages, or does not name the malformed filter:\n%s", log)
	}
}

func TestStoppedBeforeAnyGuest(t *testing.T) {
	p := startPod(t)
	p.eventually("the launcher is connected",
		func() bool { return strings.Contains(string(p.stderr.Contents()), "Connected to libvirtd") })
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeNotStarted)
}

func TestStoppedAtOnce(t *testing.T) {
	p := startPod(t)
	p.eventually("libvirtd is started", func() bool { return p.child("libvirtd") != 0 })
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeNotStarted)
}

func TestUnresponsiveGuestIsDestroyedAfterTheGracePeriod(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "1")
	startDomain(t, p)
	p.terminate()
	p.terminate() // a second request changes nothing
	p.expectExit(0, launcherpod.OutcomeDestroyed)
}

func TestNoGracePeriodDestroysAtOnce(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "0")
	startDomain(t, p)
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeDestroyed)
}

func TestKilledQEMU(t *testing.T) {
	p := startPod(t)
	startDomain(t, p)
	kill(t, p.child("qemu-system"))
	outcome := p.expectExit(1, launcherpod.OutcomeCrashed)
	if !strings.Contains(outcome.Message, "SIGKILL") {
		t.Errorf("the message %q does not name the signal", outcome.Message)
	}
}

func TestKilledLibvirtd(t *testing.T) {
	p := startPod(t)
	startDomain(t, p)
	qemu := p.child("qemu-system")
	kill(t, p.child("libvirtd"))
	outcome := p.expectExit(1, launcherpod.OutcomeLibvirtFailed)
	if !strings.Contains(outcome.Message, "SIGKILL") {
		t.Errorf("the message %q does not name the signal", outcome.Message)
	}
	if err := unix.Kill(qemu, 0); err == nil {
		t.Error("QEMU outlived its Pod")
	}
}

func TestDestroyedWithoutARequestToStop(t *testing.T) {
	p := startPod(t)
	domain := startDomain(t, p)
	if err := domain.Destroy(); err != nil {
		t.Fatal(err)
	}
	p.expectExit(1, launcherpod.OutcomeKilled)
}

func TestDestroyedJustBeforeTheRequestToStop(t *testing.T) {
	p := startPod(t, "--grace-period-seconds", "0")
	domain := startDomain(t, p)
	if err := domain.Destroy(); err != nil {
		t.Fatal(err)
	}
	p.terminate()
	p.expectExit(0, launcherpod.OutcomeDestroyed)
}

func TestConsoleAndMemory(t *testing.T) {
	p := startPod(t, "--interface", "eth0,masquerade,10.0.2.0/24")
	startDomain(t, p)
	fifo, err := os.OpenFile(p.runtime("console.fifo"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fifo.Close() }()
	if _, err := fifo.WriteString("a line of the guest\n"); err != nil {
		t.Fatal(err)
	}
	log := gbytes.NewBuffer()
	tailed := make(chan error, 1)
	go func() { tailed <- tail.Run(p.consoleLog(), log, nil, nil) }()
	// The output of SeaBIOS may come first.
	p.eventually("the console reaches the log",
		func() bool { return strings.Contains(string(log.Contents()), "a line of the guest\n") })

	status := statusFields("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/status")
	t.Logf("launcher: VmRSS %s, anonymous %s", status["VmRSS"], status["RssAnon"])
	rss, err := strconv.Atoi(strings.TrimSuffix(status["VmRSS"], " kB"))
	if err != nil || rss > maxRSS {
		t.Errorf("the launcher has %s of resident memory, want at most %d kB", status["VmRSS"], maxRSS)
	}

	if _, err := fifo.WriteString("its last words\n"); err != nil {
		t.Fatal(err)
	}
	kill(t, p.child("qemu-system"))
	p.expectExit(1, launcherpod.OutcomeCrashed)
	if err := <-tailed; err != nil {
		t.Error(err)
	}
	if !strings.HasSuffix(string(log.Contents()), "its last words\n") || strings.Contains(string(log.Contents()), `"msg"`) {
		t.Errorf("the console's log is %q", string(log.Contents()))
	}
	if strings.Contains(string(p.stdout.Contents())+string(p.stderr.Contents()), "last words") {
		t.Error("the console is in the launcher's log as well")
	}
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("there is no such process")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
