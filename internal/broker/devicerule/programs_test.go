// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	disk  = Device{Major: 7, Minor: 113}
	other = Device{Major: 7, Minor: 114}
	// null and zero are the character devices /dev/null and /dev/zero.
	null, zero = "c 1:3", "c 1:5"
)

// onlyNull is a program like that of a runtime: it permits /dev/null, and mknod of every block device.
var onlyNull = []instruction{
	{0x61, 0x12, 0, 0},      // r2 = type and access
	{0xbf, 0x23, 0, 0},      // r3 = r2
	{0x57, 0x02, 0, 0xffff}, // r2 &= type
	{0x77, 0x03, 0, 16},     // r3 >>= 16: access
	{0x61, 0x14, 4, 0},      // r4 = major
	{0x61, 0x15, 8, 0},      // r5 = minor
	{0x55, 0x02, 3, 1},      // block?
	{0x55, 0x03, 2, 1},      // mknod?
	{0xb7, 0x00, 0, 1},      // permit
	{0x95, 0x00, 0, 0},      //
	{0x55, 0x02, 4, 2},      // character?
	{0x55, 0x04, 3, 1},      // major 1?
	{0x55, 0x05, 2, 3},      // minor 3?
	{0xb7, 0x00, 0, 1},      // permit
	{0x95, 0x00, 0, 0},      //
	{0xb7, 0x00, 0, 0},      // deny
	{0x95, 0x00, 0, 0},      //
}

// newCgroup returns a cgroup of version 2 with device programs, or skips the test.
func newCgroup(t *testing.T, attached ...[]instruction) programs {
	t.Helper()
	mount, err := mountHierarchy(cgroups{v2: true})
	if err != nil {
		t.Skip("needs root and cgroup v2:", err)
	}
	t.Cleanup(func() { _ = mount.Close() })
	name := "vireo-test-" + strconv.Itoa(os.Getpid()) + "-" + strings.ReplaceAll(t.Name(), "/", "-")
	if err := unix.Mkdirat(int(mount.Fd()), name, 0o755); err != nil {
		t.Skip("cannot make a cgroup:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unlinkat(int(mount.Fd()), name, unix.AT_REMOVEDIR); err != nil {
			t.Error(err)
		}
	})
	dir, err := openBeneath(mount, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	for _, program := range attached {
		attach(t, dir, program)
	}
	return programs{dir}
}

// attach attaches a program as a runtime does: beside others.
func attach(t *testing.T, dir *os.File, program []instruction) {
	t.Helper()
	raw := make([]byte, 0, len(program)*instructionBytes)
	for _, i := range program {
		raw = append(raw, (*(*[instructionBytes]byte)(unsafe.Pointer(&i)))[:]...)
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	license := []byte("Apache\x00")
	load := struct {
		kind, count           uint32
		instructions, license uint64
		_                     [80]byte
	}{kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(program)), instructions: address(&pins, &raw[0]), license: address(&pins, &license[0])}
	fd, err := bpf(unix.BPF_PROG_LOAD, &load)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	request := struct{ target, program, attachType, flags, replaced uint32 }{
		target: uint32(dir.Fd()), program: uint32(fd), attachType: unix.BPF_CGROUP_DEVICE, flags: unix.BPF_F_ALLOW_MULTI,
	}
	if _, err := bpf(unix.BPF_PROG_ATTACH, &request); err != nil {
		t.Fatal(err)
	}
}

// openIn tries to open devices in a process of a cgroup of version 2. It returns which were denied.
func openIn(t *testing.T, cgroup *os.File, devices ...string) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	denied := map[string]bool{}
	for i, device := range devices {
		path := filepath.Join(dir, strconv.Itoa(i))
		kind, numbers, _ := strings.Cut(device, " ")
		major, minor, _ := strings.Cut(numbers, ":")
		a, _ := strconv.ParseUint(major, 10, 32)
		b, _ := strconv.ParseUint(minor, 10, 32)
		mode := uint32(unix.S_IFBLK)
		if kind == "c" {
			mode = unix.S_IFCHR
		}
		if err := unix.Mknod(path, mode|0o600, int(unix.Mkdev(uint32(a), uint32(b)))); err != nil {
			t.Skip("cannot make a device file:", err)
		}
		// A device that does not exist is another error than one that is denied.
		command := exec.Command("/bin/sh", "-c", "exec < "+path)
		command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
		output, err := command.CombinedOutput()
		text := string(output)
		if strings.Contains(text, "such file") && strings.Contains(text, "sh:") && errors.Is(err, os.ErrNotExist) {
			t.Fatal(text)
		}
		denied[device] = strings.Contains(text, "Operation not permitted")
	}
	return denied
}

func (d Device) block() string {
	return "b " + strconv.Itoa(int(d.Major)) + ":" + strconv.Itoa(int(d.Minor))
}

func expectDenied(t *testing.T, p programs, want ...string) {
	t.Helper()
	all := []string{null, zero, disk.block(), other.block()}
	denied := openIn(t, p.dir, all...)
	for _, device := range all {
		if denied[device] != slices.Contains(want, device) {
			t.Errorf("%s: denied is %v", device, denied[device])
		}
	}
}

func expectAdded(t *testing.T, p programs, want ...Device) {
	t.Helper()
	added, err := p.added()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(added, func(a, b Device) int { return int(a.Minor) - int(b.Minor) })
	if !slices.Equal(added, want) {
		t.Errorf("the rules are for %v, want %v", added, want)
	}
}

// attachedPrograms returns the instructions of the programs of a cgroup.
func attachedPrograms(t *testing.T, p programs) [][]instruction {
	t.Helper()
	var all [][]instruction
	if err := p.each(func(_ int, program []instruction) error {
		all = append(all, program)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestADeviceIsAddedToAProgramAndRemoved(t *testing.T) {
	p := newCgroup(t, onlyNull)
	before := attachedPrograms(t, p)
	expectDenied(t, p, zero, disk.block(), other.block())
	for range 2 { // the second time changes nothing
		if err := change(p, []Device{disk}); err != nil {
			t.Fatal(err)
		}
		expectAdded(t, p, disk)
		expectDenied(t, p, zero, other.block())
	}
	if err := change(p, []Device{disk, other}); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, disk, other)
	expectDenied(t, p, zero)
	if err := change(p, []Device{other}); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, other)
	expectDenied(t, p, zero, disk.block())
	if err := change(p, nil); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p)
	if after := attachedPrograms(t, p); !slices.EqualFunc(before, after, slices.Equal) {
		t.Errorf("the programs are\n%v, were\n%v", after, before)
	}
}

// systemd has a program beside the runtime's, and both must permit.
func TestEveryProgramIsChanged(t *testing.T) {
	p := newCgroup(t, onlyNull, onlyNull)
	if err := p.allow(disk); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, disk, disk)
	expectDenied(t, p, zero, other.block())
	if err := p.deny(disk); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p)
}

func TestACgroupWithoutAProgramStaysSo(t *testing.T) {
	p := newCgroup(t)
	if err := p.allow(disk); err != nil {
		t.Fatal(err)
	}
	if all := attachedPrograms(t, p); len(all) > 0 {
		t.Errorf("it has %d programs", len(all))
	}
}

func TestProgramsThatTheKernelDoesNotReturnAsTheyWere(t *testing.T) {
	for name, bad := range map[string]instruction{"a call": {0x85, 0, 0, 5}, "a map": {0x18, 0x11, 0, 3}} {
		if err := expectSimple([]instruction{{0xb7, 0, 0, 1}, bad, {0x95, 0, 0, 0}}); !errors.Is(err, errCalls) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := expectSimple(append(check(disk), onlyNull...)); err != nil {
		t.Error(err)
	}
}

// Only what this package adds is recognized.
func TestSplit(t *testing.T) {
	foreign := check(disk)
	foreign[8].immediate = 0
	for name, program := range map[string][]instruction{
		"another program": onlyNull, "nothing": nil, "a check that denies": append(foreign, onlyNull...), "only a check": check(disk),
	} {
		if devices, rest := split(program); len(devices) > 0 || !slices.Equal(rest, program) {
			t.Errorf("%s: %v", name, devices)
		}
	}
	devices, rest := split(slices.Concat(check(disk), check(other), onlyNull))
	if !slices.Equal(devices, []Device{disk, other}) || !slices.Equal(rest, onlyNull) {
		t.Errorf("%v, %v", devices, rest)
	}
}
