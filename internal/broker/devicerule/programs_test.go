// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

var (
	disk  = Device{Major: 7, Minor: 113}
	other = Device{Major: 7, Minor: 114}
	// null and zero are the character devices /dev/null and /dev/zero.
	null, zero = "c 1:3", "c 1:5"
)

// onlyNull is a program like that of a runtime: it permits /dev/null, and mknod of every block device.
var onlyNull = asm.Instructions{
	asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // r2 = type and access
	asm.Mov.Reg(asm.R3, asm.R2),
	asm.And.Imm(asm.R2, 0xffff), // type
	asm.RSh.Imm(asm.R3, 16),     // access
	asm.LoadMem(asm.R4, asm.R1, 4, asm.Word),
	asm.LoadMem(asm.R5, asm.R1, 8, asm.Word),
	unless(asm.R2, 1, 3), // block?
	unless(asm.R3, 1, 2), // mknod?
	asm.Mov.Imm(asm.R0, 1),
	asm.Return(),
	unless(asm.R2, 2, 4), // character?
	unless(asm.R4, 1, 3), // major 1?
	unless(asm.R5, 3, 2), // minor 3?
	asm.Mov.Imm(asm.R0, 1),
	asm.Return(),
	asm.Mov.Imm(asm.R0, 0),
	asm.Return(),
}

func unless(of asm.Register, value int64, skip int16) asm.Instruction {
	return asm.Instruction{OpCode: asm.JNE.Op(asm.ImmSource), Dst: of, Offset: skip, Constant: value}
}

// newCgroup returns a cgroup of version 2 with device programs, or skips the test.
func newCgroup(t *testing.T, attached ...asm.Instructions) programs {
	t.Helper()
	mount, err := podprocess.MountKernelFS("cgroup2")
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
	dir, err := podprocess.OpenAt(mount, name, unix.O_RDONLY|unix.O_DIRECTORY, podprocess.Beneath)
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
func attach(t *testing.T, dir *os.File, instructions asm.Instructions) {
	t.Helper()
	program, err := ebpf.NewProgram(
		&ebpf.ProgramSpec{Type: ebpf.CGroupDevice, Instructions: instructions, License: "Apache"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(dir.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if err != nil {
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
func attachedPrograms(t *testing.T, p programs) []asm.Instructions {
	t.Helper()
	var all []asm.Instructions
	if err := p.each(func(_ *ebpf.Program, program asm.Instructions) error {
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
		if err := p.set([]Device{disk}); err != nil {
			t.Fatal(err)
		}
		expectAdded(t, p, disk)
		expectDenied(t, p, zero, other.block())
	}
	if err := p.set([]Device{disk, other}); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, disk, other)
	expectDenied(t, p, zero)
	if err := p.set([]Device{other}); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, other)
	expectDenied(t, p, zero, disk.block())
	if err := p.set(nil); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p)
	if after := attachedPrograms(t, p); !slices.EqualFunc(before, after, slices.Equal[asm.Instructions]) {
		t.Errorf("the programs are\n%v, were\n%v", after, before)
	}
}

// systemd has a program beside the runtime's, and both must permit.
func TestEveryProgramIsChanged(t *testing.T) {
	p := newCgroup(t, onlyNull, onlyNull)
	if err := p.set([]Device{disk}); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p, disk)
	expectDenied(t, p, zero, other.block())
	if err := p.set(nil); err != nil {
		t.Fatal(err)
	}
	expectAdded(t, p)
}

func TestACgroupWithoutAProgramStaysSo(t *testing.T) {
	p := newCgroup(t)
	if err := p.set([]Device{disk}); err != nil {
		t.Fatal(err)
	}
	if all := attachedPrograms(t, p); len(all) > 0 {
		t.Errorf("it has %d programs", len(all))
	}
}

func TestProgramsThatTheKernelDoesNotReturnAsTheyWere(t *testing.T) {
	for name, bad := range map[string]asm.Instruction{"a call": asm.FnKtimeGetNs.Call(),
		"a map": asm.LoadMapPtr(asm.R1, 3)} {
		if err := expectSimple(asm.Instructions{asm.Mov.Imm(asm.R0, 1), bad, asm.Return()}); !errors.Is(err, errCalls) {
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
	foreign[8].Constant = 0
	for name, program := range map[string]asm.Instructions{
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

// The cgroups of containers are found from the root of the hierarchy, whatever processes are in them.
func TestSweep(t *testing.T) {
	pod := newCgroup(t, onlyNull)
	if err := pod.set([]Device{disk}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkdirat(int(pod.dir.Fd()), "container", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unlinkat(int(pod.dir.Fd()), "container", unix.AT_REMOVEDIR) })
	dir, err := podprocess.OpenAt(pod.dir, "container", unix.O_RDONLY|unix.O_DIRECTORY, podprocess.Beneath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	attach(t, dir, onlyNull)
	container := programs{dir}
	if err := container.set([]Device{disk, other}); err != nil {
		t.Fatal(err)
	}
	name := t.TempDir()
	if err := os.WriteFile(filepath.Join(name, "cgroup"), []byte("0::/\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	process, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Close() }()
	err = Sweep(process, []string{"none", "this"}, func(element, pod string) bool {
		return pod == "this" && strings.HasPrefix(element, "vireo-test-"+strconv.Itoa(os.Getpid())+"-"+t.Name())
	}, func(pod string, current []Device) ([]Device, error) {
		if !slices.Equal(current, []Device{disk, other}) || pod != "this" {
			t.Errorf("the devices of %s are %v", pod, current)
		}
		return []Device{other}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	expectAdded(t, container, other)
	expectAdded(t, pod, disk) // it is no container
}
