// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package selftest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// program is QEMU in a launcher's root file system.
const program = "/usr/bin/qemu-system-x86_64"

// machine is a QEMU of the test's own, which is told what to do by QMP on its standard input.
type machine struct {
	command *exec.Cmd
	input   io.WriteCloser
	answers *bufio.Scanner
	errors  strings.Builder
}

// start starts a QEMU that waits, with a disk that it does not lock. It gets the disk as an open file: it sees nothing but its root.
func start(root, disk string) (*machine, error) {
	file, err := openDirect(disk)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	m := &machine{command: exec.Command(program,
		"-machine", "pc,accel=tcg", "-m", "16", "-nodefaults", "-display", "none", "-S", "-qmp", "stdio", "-add-fd", "fd=3,set=1",
		"-blockdev", `{"node-name":"disk","driver":"raw","file":{"driver":"file","filename":"/dev/fdset/1","locking":"off","cache":{"direct":true}}}`,
		"-device", "ide-hd,drive=disk,bootindex=1")}
	m.command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	m.command.Dir, m.command.ExtraFiles, m.command.Stderr = "/", []*os.File{file}, &m.errors
	output, err := m.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.answers = bufio.NewScanner(output)
	if m.input, err = m.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := m.command.Start(); err != nil {
		return nil, fmt.Errorf("start a QEMU of %s: %w", root, err)
	}
	if err := m.tell("qmp_capabilities"); err != nil {
		m.kill()
		return nil, err
	}
	return m, nil
}

// tell has it carry out a command, and returns when it has.
func (m *machine) tell(command string) error {
	if _, err := fmt.Fprintf(m.input, "{%q: %q}\n", "execute", command); err != nil {
		return fmt.Errorf("tell QEMU to %s: %w: %s", command, err, m.output())
	}
	for m.answers.Scan() {
		answer := map[string]json.RawMessage{}
		if err := json.Unmarshal(m.answers.Bytes(), &answer); err != nil {
			return fmt.Errorf("QEMU says %q: %w", m.answers.Text(), err)
		}
		if refused, is := answer["error"]; is {
			return fmt.Errorf("QEMU refuses %s: %s", command, refused)
		}
		if _, done := answer["return"]; done {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("QEMU has ended: %s", m.output()), m.answers.Err())
}

func (m *machine) pid() int { return m.command.Process.Pid }

func (m *machine) output() string { return m.errors.String() }

func (m *machine) kill() {
	_ = m.command.Process.Kill()
	_ = m.command.Wait()
}
