// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// programs are the device programs of a cgroup of version 2, given its directory. Each of them must permit an access.
// Source: Linux kernel/bpf/cgroup.c and include/uapi/linux/bpf.h.
type programs struct{ dir *os.File }

// mark is the value that the check of this package begins with. No program of a runtime loads it.
const mark = 0x56697265

// check returns instructions that permit any access but mknod to a block device, and go on after them for everything
// else. The context is in r1: the type of the access, whose lower half is that of the device, and the numbers. r2 is
// free at the start of a program.
func check(d Device) asm.Instructions {
	const mknod, block = unix.BPF_DEVCG_ACC_MKNOD << 16, unix.BPF_DEVCG_DEV_BLOCK
	unless := func(value uint32, skip int16) asm.Instruction {
		return asm.Instruction{OpCode: asm.JNE.Op(asm.ImmSource), Dst: asm.R2, Offset: skip, Constant: int64(value)}
	}
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, mark),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		// All other bits of the access may be set.
		asm.And.Imm(asm.R2, mknod|0xffff),
		unless(block, 6),
		asm.LoadMem(asm.R2, asm.R1, 4, asm.Word),
		unless(d.Major, 4),
		asm.LoadMem(asm.R2, asm.R1, 8, asm.Word),
		unless(d.Minor, 2),
		asm.Mov.Imm(asm.R0, 1),
		asm.Return(),
	}
}

// split returns the devices of the checks that a program begins with, and the rest.
func split(program asm.Instructions) ([]Device, asm.Instructions) {
	var devices []Device
	length := len(check(Device{}))
	for len(program) > length && program[0].Constant == mark {
		device := Device{Major: uint32(program[5].Constant), Minor: uint32(program[7].Constant)}
		if !slices.Equal(program[:length], check(device)) {
			break
		}
		devices, program = append(devices, device), program[length:]
	}
	return devices, program
}

// errCalls means that a program cannot be loaded again as the kernel returns it.
var errCalls = errors.New(
	"the runtime's device program calls functions or uses maps: a device can be added to simple ones only")

// expectSimple returns an error if a program has instructions that the kernel does not return as they were loaded.
func expectSimple(program asm.Instructions) error {
	for _, i := range program {
		if i.OpCode.JumpOp() == asm.Call || i.OpCode.IsDWordLoad() && i.Src != 0 {
			return errCalls
		}
	}
	return nil
}

func (p programs) added() ([]Device, error) {
	var devices []Device
	err := p.each(func(_ *ebpf.Program, program asm.Instructions) error {
		added, _ := split(program)
		devices = append(devices, slices.DeleteFunc(added, func(d Device) bool { return slices.Contains(devices, d) })...)
		return nil
	})
	return devices, err
}

func (p programs) set(want []Device) error {
	return p.each(func(old *ebpf.Program, program asm.Instructions) error {
		added, rest := split(program)
		if slices.Equal(added, want) {
			return nil
		}
		var next asm.Instructions
		for _, device := range want {
			next = append(next, check(device)...)
		}
		return p.replace(old, append(next, rest...))
	})
}

// each calls a function with each program that is attached to the cgroup itself.
func (p programs) each(visit func(*ebpf.Program, asm.Instructions) error) error {
	found, err := link.QueryPrograms(link.QueryOptions{Target: int(p.dir.Fd()), Attach: ebpf.AttachCGroupDevice})
	if err != nil {
		return fmt.Errorf("find the device programs of the container's cgroup: %w", err)
	}
	for _, attached := range found.Programs {
		if err := visitProgram(attached.ID, visit); err != nil {
			return fmt.Errorf("device program %d of the container's cgroup: %w", attached.ID, err)
		}
	}
	return nil
}

func visitProgram(id ebpf.ProgramID, visit func(*ebpf.Program, asm.Instructions) error) error {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return err
	}
	instructions, err := info.Instructions()
	if err != nil {
		return fmt.Errorf("read its instructions: %w", err)
	}
	for i := range instructions {
		instructions[i].Metadata = asm.Metadata{} // only the library has names for instructions
	}
	return visit(program, instructions)
}

// replace loads a program and attaches it in place of another one, in one step.
func (p programs) replace(old *ebpf.Program, instructions asm.Instructions) error {
	if err := expectSimple(instructions); err != nil {
		return err
	}
	program, err := ebpf.NewProgram(
		&ebpf.ProgramSpec{Name: "vireo", Type: ebpf.CGroupDevice, Instructions: instructions, License: "Apache-2.0"})
	if err != nil {
		return fmt.Errorf("load its successor: %w", err)
	}
	defer func() { _ = program.Close() }()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: int(p.dir.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice, Anchor: link.ReplaceProgram(old),
		Flags: unix.BPF_F_ALLOW_MULTI,
	})
	if err != nil {
		return fmt.Errorf("attach its successor: %w", err)
	}
	return nil
}
