// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/devicerule"
	"github.com/vireo-project/vireo/internal/broker/pods"
)

// eventually waits until something is so that becomes so by itself, and sooner than the next sweep.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(min(patience, sweepInterval/2)); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// attachDevice attaches a device, and returns the rules of the launcher's container.
func (h *hotplugWorld) attachDevice(number uint64) func() string {
	h.t.Helper()
	rules := h.confine()
	h.publish(attachmentUID, number)
	if err := h.attach("data", attachmentUID, true); err != nil {
		h.t.Fatal(err)
	}
	if got := rules(); got != fmt.Sprintf("b %d:%d rw;", unix.Major(number), unix.Minor(number)) {
		h.t.Fatalf("the rules are %q", got)
	}
	return rules
}

// restart starts another broker.
func (h *hotplugWorld) restart() {
	h.start(func(*net.UnixConn, string) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/%d", h.process.Pid)) })
}

// The kubelet removes its link before the CSI driver detaches the device. No request and no timer is needed.
func TestARuleEndsWithTheLinkToItsDevice(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.attachDevice(blockDevice)
	if err := os.Remove(h.link(attachmentUID)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rule is gone", func() bool { return rules() == "" })
}

func TestARuleEndsWithTheLogDirectoryOfItsPod(t *testing.T) {
	h := newHotplugWorld(t)
	rules := h.attachDevice(blockDevice)
	if err := os.RemoveAll(filepath.Join(h.logs, "ns_virt-launcher-a_"+podUID)); err != nil {
		t.Fatal(err)
	}
	if err := h.broker.sweepDevices(); err != nil || rules() != "" {
		t.Errorf("the rules are %q, %v", rules(), err)
	}
}

// openedPipes has a broker open a pipe in the place of each device. closed reports whether it has closed the first one.
func (h *hotplugWorld) openedPipes() (closed func() bool) {
	h.t.Helper()
	h.stop()
	ends := make(chan *os.File, 16)
	h.open = func(string) (*os.File, error) {
		r, w, err := os.Pipe()
		ends <- r
		return w, err
	}
	h.restart()
	var first *os.File
	return func() bool {
		h.t.Helper()
		if first == nil {
			first = <-ends
			h.t.Cleanup(func() { _ = first.Close() })
		}
		_ = first.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := first.Read(make([]byte, 1))
		return !errors.Is(err, os.ErrDeadlineExceeded)
	}
}

func TestADeviceIsClosedAfterItsRuleIsGone(t *testing.T) {
	h := newHotplugWorld(t)
	closed := h.openedPipes()
	rules := h.attachDevice(blockDevice)
	// The volume is taken from this guest. Until the kubelet has removed the link, it may be given to another one.
	if err := h.broker.sweepDevices(); err != nil || closed() {
		t.Errorf("the device is closed while there is a rule for it: %v", err)
	}
	// What cannot be checked stays, and the device with it.
	if err := os.Rename(h.logs, h.logs+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := h.broker.sweepDevices(); err == nil || rules() == "" || closed() {
		t.Errorf("without the directory of logs: %v, the rules are %q", err, rules())
	}
	if err := errors.Join(os.Rename(h.logs+"-moved", h.logs), os.Remove(h.link(attachmentUID))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the device is closed", closed)
	if got := rules(); got != "" {
		t.Errorf("it was closed while the rules were %q", got)
	}
}

// A device that another guest of the namespace has as well stays open.
func TestADeviceStaysOpenForAnotherAttachment(t *testing.T) {
	h := newHotplugWorld(t)
	closed := h.openedPipes()
	h.attachDevice(blockDevice)
	const other = "3b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11"
	if err := os.Mkdir(filepath.Join(h.logs, "other_hp-volume-data_"+other), 0o755); err != nil {
		t.Fatal(err)
	}
	h.publish(other, blockDevice)
	if err := errors.Join(h.detach("data", true), os.Remove(h.link(attachmentUID)), h.broker.sweepDevices()); err != nil {
		t.Fatal(err)
	}
	if closed() {
		t.Error("it is closed")
	}
	if err := os.Remove(h.link(other)); err != nil {
		t.Fatal(err)
	}
	if err := h.broker.sweepDevices(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the device is closed", closed)
}

func TestRulesAreCheckedBeforeABrokerServes(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(*hotplugWorld) error
		keeps     bool
	}{
		"the volume is attached":     {func(*hotplugWorld) error { return nil }, true},
		"the kubelet has removed it": {func(h *hotplugWorld) error { return os.Remove(h.link(attachmentUID)) }, false},
		"the device does not open": {func(h *hotplugWorld) error {
			h.open = func(string) (*os.File, error) { return nil, unix.ENXIO }
			return nil
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHotplugWorld(t)
			rules := h.attachDevice(blockDevice)
			h.stop()
			if err := tc.meanwhile(h); err != nil {
				t.Fatal(err)
			}
			h.restart()
			if got := rules(); (got != "") != tc.keeps {
				t.Errorf("the rules are %q", got)
			}
			if open := (h.broker.opened[devicerule.Device{Major: 7, Minor: 117}] != nil); open != tc.keeps {
				t.Errorf("it is open: %v", open)
			}
		})
	}
}

// loop is a loop device with an image.
type loop struct {
	t      *testing.T
	device *os.File
	number uint64
}

func newLoop(t *testing.T) *loop {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs loop devices:", err)
	}
	defer func() { _ = control.Close() }()
	free, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Skip("needs loop devices:", err)
	}
	device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", free), os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs loop devices:", err)
	}
	l := &loop{t: t, device: device, number: unix.Mkdev(7, uint32(free))}
	t.Cleanup(func() { _ = l.clear(); _ = device.Close() })
	if err := l.set(); err != nil {
		t.Skip("needs loop devices:", err)
	}
	return l
}

// set makes it the device of another image.
func (l *loop) set() error {
	l.t.Helper()
	image, err := os.Create(filepath.Join(l.t.TempDir(), "image"))
	if err == nil {
		err = image.Truncate(1 << 20)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() { _ = image.Close() }()
	return unix.IoctlSetInt(int(l.device.Fd()), unix.LOOP_SET_FD, int(image.Fd()))
}

func (l *loop) clear() error { return unix.IoctlSetInt(int(l.device.Fd()), unix.LOOP_CLR_FD, 0) }

// sequence is the kernel's number of the disk, which no other one has.
func (l *loop) sequence() string {
	l.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/diskseq", unix.Minor(l.number)))
	if err != nil {
		l.t.Skip("needs the sequence numbers of disks:", err)
	}
	return string(text)
}

// The driver cannot give the number of a device that was detached to another one while a launcher Pod may open it.
func TestANumberIsNotUsedAgainWhileThereIsARuleForIt(t *testing.T) {
	h := newHotplugWorld(t)
	h.stop()
	h.open = nil
	h.restart()
	l := newLoop(t)
	before := l.sequence()
	rules := h.attachDevice(l.number)
	if err := os.Rename(filepath.Join(h.disks, "data"), filepath.Join(h.disks, "hidden")); err != nil {
		t.Fatal(err)
	}
	if got := h.use("hidden"); strings.Contains(got, "not permitted") {
		t.Fatalf("the launcher gets %.80q", got)
	}
	if err := errors.Join(l.clear(), l.device.Close()); err != nil {
		t.Fatal(err)
	}
	device, err := os.OpenFile(l.device.Name(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.device = device
	if err := l.set(); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("the number is used again: %v", err)
	}
	if err := os.Remove(h.link(attachmentUID)); err != nil {
		t.Fatal(err)
	}
	_ = l.device.Close()
	eventually(t, "the number may be used again", func() bool {
		if l.device, err = os.OpenFile(device.Name(), os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		err := l.set()
		if err != nil {
			_ = l.device.Close()
		}
		return err == nil
	})
	if after := l.sequence(); rules() != "" || after == before {
		t.Errorf("the rules are %q for disk %s, before %s", rules(), after, before)
	}
	if got := h.use("hidden"); !strings.Contains(got, "not permitted") {
		t.Errorf("the launcher gets %.80q", got)
	}
}

// Without a broker, nothing keeps the number from another device. The next broker lets no launcher Pod open that.
func TestADeviceWithTheNumberOfOneThatWasDetachedMeanwhile(t *testing.T) {
	h := newHotplugWorld(t)
	h.stop()
	h.open = nil
	h.restart()
	l := newLoop(t)
	before := l.sequence()
	rules := h.attachDevice(l.number)
	h.stop()
	if err := errors.Join(os.Remove(h.link(attachmentUID)), l.clear(), l.device.Close()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another device has the number", func() bool {
		device, err := os.OpenFile(l.device.Name(), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.device = device
		if err := l.set(); err != nil {
			_ = device.Close()
			return false
		}
		return true
	})
	h.restart()
	if after := l.sequence(); rules() != "" || after == before {
		t.Errorf("the rules are %q for disk %s, before %s", rules(), after, before)
	}
	if got := h.use("data"); !strings.Contains(got, "not permitted") {
		t.Errorf("the launcher gets %.80q", got)
	}
}

// confinedBroker is set to the directory of a process that the tests start as a broker in a container.
const confinedBroker = "TEST_CONFINED_BROKER"

// beBroker holds the device of the attachment Pod when it reads a line, and checks it when it reads another one.
func beBroker(dir string) {
	b := New(Options{
		Pods: pods.New(filepath.Join(dir, "pods"), nil), PodLogsDir: filepath.Join(dir, "logs"), DevDir: "/dev",
		PublishedDevices: filepath.Join(dir, "published"), Log: logr.Discard(),
	})
	for _, do := range []func() error{func() error { _, err := b.keepOpen(attachmentUID); return err }, b.sweepDevices} {
		_, _ = fmt.Scanln()
		fmt.Printf("%q\n", fmt.Sprint(do()))
	}
	_, _ = fmt.Scanln()
	os.Exit(0)
}

// The runtime lets no container open a block device, and so not the broker's.
func TestABrokerInAContainerHoldsADevice(t *testing.T) {
	h, l, dir := newHotplugWorld(t), newLoop(t), t.TempDir()
	h.stop()
	h.pods, h.published = filepath.Join(dir, "pods"), filepath.Join(dir, "published")
	h.publish(attachmentUID, l.number)
	if err := os.Symlink(h.logs, filepath.Join(dir, "logs")); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/proc/self/exe")
	command.Env, command.Stderr = append(os.Environ(), confinedBroker+"="+dir), os.Stderr
	in, errIn := command.StdinPipe()
	out, errOut := command.StdoutPipe()
	if err := errors.Join(errIn, errOut, command.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = in.Close(), command.Wait() })
	h.process = command.Process
	rules := h.confine()
	expect := func(want string) {
		t.Helper()
		var result string
		if _, err := fmt.Fprintln(in); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscanf(out, "%q\n", &result); err != nil || result != "<nil>" || rules() != want {
			t.Fatalf("%q, %v, its rules are %q", result, err, rules())
		}
	}
	expect(fmt.Sprintf("b 7:%d rw;", unix.Minor(l.number)))
	if err := os.Remove(h.link(attachmentUID)); err != nil {
		t.Fatal(err)
	}
	expect("")
}
