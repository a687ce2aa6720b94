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

// program is the path of QEMU in the root file system of virt-launcher.
const program = "/usr/bin/qemu-system-x86_64"

// qemu is a QEMU process of the self-test, which is controlled by QMP on its standard input.
type qemu struct {
	command   *exec.Cmd
	input     io.WriteCloser
	responses *bufio.Scanner
	errors    strings.Builder
}

// start starts a QEMU with stopped CPUs and an unlocked disk. The disk is passed as an open file, as QEMU runs in a
// chroot.
func start(root, disk string) (*qemu, error) {
	file, err := openDirect(disk)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	q := &qemu{command: exec.Command(program,
		"-machine", "pc,accel=tcg", "-m", "16", "-nodefaults", "-display", "none", "-S", "-qmp", "stdio", "-add-fd",
		"fd=3,set=1",
		"-blockdev", `{"node-name":"disk","driver":"raw","file":{"driver":"file","filename":"/dev/fdset/1","locking":"off","cache":{"direct":true}}}`,
		"-device", "ide-hd,drive=disk,bootindex=1")}
	q.command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	q.command.Dir, q.command.ExtraFiles, q.command.Stderr = "/", []*os.File{file}, &q.errors
	output, err := q.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	q.responses = bufio.NewScanner(output)
	if q.input, err = q.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := q.command.Start(); err != nil {
		return nil, fmt.Errorf("start a QEMU of %s: %w", root, err)
	}
	if err := q.execute("qmp_capabilities"); err != nil {
		q.kill()
		return nil, err
	}
	return q, nil
}

// execute executes a QMP command and returns when it is done.
func (q *qemu) execute(command string) error {
	if _, err := fmt.Fprintf(q.input, "{%q: %q}\n", "execute", command); err != nil {
		return fmt.Errorf("send QMP command %s: %w: %s", command, err, q.output())
	}
	for q.responses.Scan() {
		response := map[string]json.RawMessage{}
		if err := json.Unmarshal(q.responses.Bytes(), &response); err != nil {
			return fmt.Errorf("parse the QMP message %q: %w", q.responses.Text(), err)
		}
		if refused, is := response["error"]; is {
			return fmt.Errorf("QMP command %s: %s", command, refused)
		}
		if _, done := response["return"]; done {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("QEMU has exited: %s", q.output()), q.responses.Err())
}

func (q *qemu) pid() int { return q.command.Process.Pid }

func (q *qemu) output() string { return q.errors.String() }

func (q *qemu) kill() {
	_ = q.command.Process.Kill()
	_ = q.command.Wait()
}
