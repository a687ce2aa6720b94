// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// programs are the device programs of a cgroup of version 2, given its directory. Each of them must permit an access.
// Source: Linux kernel/bpf/cgroup.c and include/uapi/linux/bpf.h.
type programs struct{ dir *os.File }

const (
	// maxPrograms is the kernel's limit for the programs of a cgroup.
	maxPrograms = 64
	// maxInstructions is the kernel's limit for the instructions of a program.
	maxInstructions = 1 << 20
	// instructionBytes is the size of an instruction.
	instructionBytes = 8
)

// instruction is an instruction as the kernel has it: code, registers, offset, immediate value.
type instruction struct {
	code, registers uint8
	offset          int16
	immediate       int32
}

// mark is the value that the check of this package begins with. No program of a runtime loads it.
const mark = 0x56697265

// check returns instructions that permit any access but mknod to a block device, and go on after them for everything else. The context
// is in r1: the type of the access, whose lower half is that of the device, and the numbers. r2 is free at the start of a program.
func check(d Device) []instruction {
	const (
		mov, and, jne   = 0xb7, 0x57, 0x55 // of a register and an immediate value
		load            = 0x61             // of 32 bits
		exit            = 0x95
		r0, r2, r2From1 = 0x00, 0x02, 0x12
		// mknod is the bit of that access in the upper half.
		mknod = 1 << 16
		block = 1
	)
	return []instruction{
		{mov, r2, 0, mark},
		{load, r2From1, 0, 0},
		// All other bits of the access may be set.
		{and, r2, 0, mknod | 0xffff},
		{jne, r2, 6, block},
		{load, r2From1, 4, 0},
		{jne, r2, 4, int32(d.Major)},
		{load, r2From1, 8, 0},
		{jne, r2, 2, int32(d.Minor)},
		{mov, r0, 0, 1},
		{exit, 0, 0, 0},
	}
}

// split returns the devices of the checks that a program begins with, and the rest.
func split(program []instruction) ([]Device, []instruction) {
	var devices []Device
	length := len(check(Device{}))
	for len(program) > length && program[0].immediate == mark {
		device := Device{Major: uint32(program[5].immediate), Minor: uint32(program[7].immediate)}
		if !slices.Equal(program[:length], check(device)) {
			break
		}
		devices, program = append(devices, device), program[length:]
	}
	return devices, program
}

// errCalls means that a program cannot be loaded again as the kernel returns it.
var errCalls = errors.New("the runtime's device program calls functions or uses maps: a device can be added to simple ones only")

// expectSimple returns an error if a program has instructions that the kernel does not return as they were loaded.
func expectSimple(program []instruction) error {
	const call, loadImmediate = 0x85, 0x18
	for _, i := range program {
		if i.code == call || i.code == loadImmediate && i.registers>>4 != 0 {
			return errCalls
		}
	}
	return nil
}

func (p programs) added() ([]Device, error) {
	var devices []Device
	err := p.each(func(_ int, program []instruction) error {
		added, _ := split(program)
		devices = append(devices, added...)
		return nil
	})
	return devices, err
}

func (p programs) allow(d Device) error {
	return p.each(func(fd int, program []instruction) error {
		if added, _ := split(program); slices.Contains(added, d) {
			return nil
		}
		return p.replace(fd, append(check(d), program...))
	})
}

func (p programs) deny(d Device) error {
	return p.each(func(fd int, program []instruction) error {
		added, rest := split(program)
		if !slices.Contains(added, d) {
			return nil
		}
		var next []instruction
		for _, other := range added {
			if other != d {
				next = append(next, check(other)...)
			}
		}
		return p.replace(fd, append(next, rest...))
	})
}

// each calls a function with each program that is attached to the cgroup itself.
func (p programs) each(visit func(fd int, program []instruction) error) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	ids := make([]uint32, maxPrograms)
	query := struct {
		target, attachType, queryFlags, attachFlags uint32
		ids                                         uint64
		count, _                                    uint32
		flags, linkIDs, linkFlags, revision         uint64
	}{target: uint32(p.dir.Fd()), attachType: unix.BPF_CGROUP_DEVICE, ids: address(&pins, &ids[0]), count: maxPrograms}
	_, err := bpf(unix.BPF_PROG_QUERY, &query)
	if err != nil {
		return fmt.Errorf("find the device programs of the container's cgroup: %w", err)
	}
	for _, id := range ids[:min(query.count, maxPrograms)] {
		get := struct{ id, next, flags uint32 }{id: id}
		fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, &get)
		if err != nil {
			return fmt.Errorf("open device program %d of the container's cgroup: %w", id, err)
		}
		program, err := instructionsOf(fd)
		if err == nil {
			err = visit(fd, program)
		}
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("device program %d of the container's cgroup: %w", id, err)
		}
	}
	return nil
}

// programInfo is the beginning of the kernel's description of a program.
type programInfo struct {
	// The kind, the id, the tag, the size of the compiled program.
	_                 [5]uint32
	instructionsBytes uint32
	// The compiled program.
	_            uint64
	instructions uint64
}

// instructionsOf returns the instructions of a program.
func instructionsOf(fd int) ([]instruction, error) {
	var info programInfo
	if err := describe(fd, &info); err != nil {
		return nil, err
	}
	length := info.instructionsBytes
	if length == 0 || length > maxInstructions*instructionBytes || length%instructionBytes != 0 {
		return nil, fmt.Errorf("it has %d bytes", length)
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	raw := make([]byte, length)
	info = programInfo{instructionsBytes: length, instructions: address(&pins, &raw[0])}
	if err := describe(fd, &info); err != nil {
		return nil, err
	}
	if info.instructions == 0 || info.instructionsBytes != length {
		return nil, errors.New("the kernel does not return its instructions (net.core.bpf_jit_harden is 2?)")
	}
	program := make([]instruction, 0, length/instructionBytes)
	for ; len(raw) > 0; raw = raw[instructionBytes:] {
		program = append(program, instruction{
			code: raw[0], registers: raw[1], offset: int16(binary.NativeEndian.Uint16(raw[2:])),
			immediate: int32(binary.NativeEndian.Uint32(raw[4:])),
		})
	}
	return program, nil
}

func describe(fd int, info *programInfo) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	get := struct {
		fd, bytes uint32
		info      uint64
	}{fd: uint32(fd), bytes: uint32(unsafe.Sizeof(*info)), info: address(&pins, info)}
	_, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, &get)
	return err
}

// replace loads a program and attaches it in place of another one, in one step.
func (p programs) replace(old int, program []instruction) error {
	if err := expectSimple(program); err != nil {
		return err
	}
	raw := make([]byte, 0, len(program)*instructionBytes)
	for _, i := range program {
		raw = append(raw, i.code, i.registers)
		raw = binary.NativeEndian.AppendUint16(raw, uint16(i.offset))
		raw = binary.NativeEndian.AppendUint32(raw, uint32(i.immediate))
	}
	var pins runtime.Pinner
	defer pins.Unpin()
	license := []byte("Apache-2.0\x00")
	load := struct {
		kind, count                uint32
		instructions, license      uint64
		logLevel, logSize          uint32
		log                        uint64
		kernelVersion, flags       uint32
		name                       [16]byte
		interfaceIndex, attachType uint32
	}{
		kind: unix.BPF_PROG_TYPE_CGROUP_DEVICE, count: uint32(len(program)), instructions: address(&pins, &raw[0]), license: address(&pins, &license[0]),
		name: [16]byte{'v', 'i', 'r', 'e', 'o'},
	}
	fd, err := bpf(unix.BPF_PROG_LOAD, &load)
	if err != nil {
		return fmt.Errorf("load its successor: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	attach := struct{ target, program, attachType, flags, replaced uint32 }{
		target: uint32(p.dir.Fd()), program: uint32(fd), attachType: unix.BPF_CGROUP_DEVICE,
		flags: unix.BPF_F_ALLOW_MULTI | unix.BPF_F_REPLACE, replaced: uint32(old),
	}
	if _, err := bpf(unix.BPF_PROG_ATTACH, &attach); err != nil {
		return fmt.Errorf("attach its successor: %w", err)
	}
	return nil
}

// address returns the address of a value, which stays there until the pins are removed.
func address[T any](pins *runtime.Pinner, value *T) uint64 {
	pins.Pin(value)
	return uint64(uintptr(unsafe.Pointer(value))) //nolint:gosec // the kernel's interface has addresses as numbers
}

// bpf calls the system call bpf with its attributes.
func bpf[T any](command int, attributes *T) (int, error) {
	//nolint:gosec // the attributes are a structure of the kernel's interface
	result, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attributes)), unsafe.Sizeof(*attributes))
	if errno != 0 {
		return 0, errno
	}
	return int(result), nil
}
