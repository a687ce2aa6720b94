// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package trace traces QEMUs in the kernel: when their guests' CPUs are started and stopped, when they begin to send
// memory, when they end, and when which process writes to a file. Each event is recorded on the thread that causes it,
// with the kernel's monotonic clock. The kernel orders the events; their times are in microseconds.
package trace

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/test/chaos/oracle"
)

const (
	// name is the name of the trace instance and of the group of the probes; others are not changed.
	name = "vireo_chaos"
	// mountPoint is separate from the usual mount point of tracefs, which may be missing.
	mountPoint = "/run/vireo-chaos/tracing"
	// tracefsMagic is TRACEFS_MAGIC of the kernel's include/uapi/linux/magic.h.
	tracefsMagic = 0x74726163
	// bufferKiB is the size of the buffer for each CPU. The kernel drops events when it is full.
	bufferKiB = "8192"
)

// Trace is a running trace.
type Trace struct {
	instance string
	// lock prevents a second trace by another process; see acquire.
	lock   *os.File
	pipe   *os.File
	events chan oracle.Event
	// err is why the reading ended; it is set before events is closed.
	err error
}

// probe is a function of QEMU whose entry is traced.
type probe struct {
	// symbol is the name of the function, and arguments are the recorded arguments (the kernel's
	// Documentation/trace/uprobetracer.rst, with the registers of the System V ABI of x86-64).
	symbol, arguments string
}

// probes by the name of the event. vm_state_notify(bool running, RunState state) is called immediately before the CPUs
// are started, and after they have stopped: see vm_prepare_start and do_vm_stop in QEMU's system/cpus.c.
var probes = map[string]probe{
	"state": {"vm_state_notify", "running=%di:u8 state=%si:u32"},
	"send":  {"qmp_migrate", ""},
}

// Start traces the QEMUs whose programs are these files.
func Start(programs []string) (*Trace, error) {
	if err := mount(); err != nil {
		return nil, err
	}
	lock, err := acquire()
	if err != nil {
		return nil, err
	}
	t := &Trace{lock: lock, instance: filepath.Join(mountPoint, "instances", name), events: make(chan oracle.Event, 4096)}
	if err := t.clear(); err != nil {
		return nil, errors.Join(fmt.Errorf("remove what an earlier trace left: %w", err), lock.Close())
	}
	if err := t.set(programs); err != nil {
		return nil, errors.Join(err, t.clear(), lock.Close())
	}
	pipe, err := os.OpenFile(filepath.Join(t.instance, "trace_pipe"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.Join(err, t.clear(), lock.Close())
	}
	t.pipe = pipe
	go t.read()
	return t, nil
}

func mount() error {
	if err := os.MkdirAll(mountPoint, 0o700); err != nil {
		return err
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(mountPoint, &stat); err != nil || stat.Type == tracefsMagic {
		return err
	}
	if err := unix.Mount("tracefs", mountPoint, "tracefs", 0, ""); err != nil {
		return fmt.Errorf("mount the kernel's trace file system: %w", err)
	}
	return nil
}

// acquire locks the mount point, as the trace of another process would be removed as one that an earlier process left.
// The lock ends with the process.
func acquire() (*os.File, error) {
	lock, err := os.Open(filepath.Dir(mountPoint))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process traces QEMUs on this host (`make chaos`?): lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}

// set creates a trace instance with the events.
func (t *Trace) set(programs []string) error {
	if err := os.Mkdir(t.instance, 0o700); err != nil {
		return fmt.Errorf("create a trace instance: %w", err)
	}
	for i, program := range programs {
		for event, p := range probes {
			offset, err := offsetOf(program, p.symbol)
			if err != nil {
				return err
			}
			definition := fmt.Sprintf("p:%s/%s_%d %s:0x%x %s\n", name, event, i, program, offset, p.arguments)
			if err := add(filepath.Join(mountPoint, "uprobe_events"), definition); err != nil {
				return fmt.Errorf("probe %s of %s: %w", p.symbol, program, err)
			}
		}
	}
	for _, setting := range [][2]string{
		{"trace_clock", "mono"}, {"buffer_size_kb", bufferKiB}, {"options/record-tgid", "1"}, {"buffer_percent", "0"},
		{"events/sched/sched_process_exit/filter", "group_dead == 1"}, {"events/sched/sched_process_exit/enable", "1"},
		{"events/task/" + newThread + "/enable", "1"}, {"events/" + name + "/enable", "1"},
	} {
		if err := t.write(setting[0], setting[1]); err != nil {
			return err
		}
	}
	return nil
}

// writes are the kernel's events of writes to a file, with further conditions of their filters: direct writes
// (IOMAP_WRITE is 1, see the kernel's include/linux/iomap.h), writes through the page cache, and holes.
var writes = map[string]string{
	"iomap/iomap_iter": " && flags & 1 && length > 0", "ext4/ext4_write_begin": "", "ext4/ext4_da_write_begin": "",
	"ext4/ext4_fallocate_enter": "", "ext4/ext4_punch_hole": "",
}

// ext4Magic is EXT4_SUPER_MAGIC of the kernel's include/uapi/linux/magic.h.
const ext4Magic = 0xef53

// Watch adds events for each write to a file. It replaces a file that was watched before.
func (t *Trace) Watch(path string) error {
	var stat unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Stat(path, &stat), unix.Statfs(path, &system)); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if system.Type != ext4Magic {
		return fmt.Errorf("%s is not on an ext4 file system: writes can only be traced on ext4", path)
	}
	// The kernel's own encoding of device numbers has 20 bits of minor.
	device := unix.Major(stat.Dev)<<20 | unix.Minor(stat.Dev)
	for event, also := range writes {
		filter := fmt.Sprintf("dev == %d && ino == %d%s", device, stat.Ino, also)
		if err := t.write("events/"+event+"/filter", filter); err != nil {
			return err
		}
		if err := t.write("events/"+event+"/enable", "1"); err != nil {
			return err
		}
	}
	return nil
}

// Events returns the events in their order. The channel is closed when the trace ends.
func (t *Trace) Events() <-chan oracle.Event { return t.events }

// Err is why the trace has ended by itself, nil after Stop. It is valid after Events is closed.
func (t *Trace) Err() error { return t.err }

func (t *Trace) read() {
	defer close(t.events)
	lines, threads := bufio.NewScanner(t.pipe), threads{}
	for lines.Scan() {
		event, err := threads.parse(lines.Text())
		if err != nil {
			t.err = err
			return
		}
		if event != nil {
			t.events <- *event
		}
	}
	if err := lines.Err(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.err = err
	}
}

// Stop ends the trace, and removes the trace instance, the probes and the mount.
func (t *Trace) Stop() error {
	err := t.pipe.Close()
	for range t.events {
	}
	return errors.Join(err, t.clear(), unix.Unmount(mountPoint, 0), t.lock.Close())
}

// clear removes the trace instance and the probes, if there are any.
func (t *Trace) clear() error {
	if _, err := os.Stat(t.instance); err == nil {
		if err := t.write("events/enable", "0"); err != nil {
			return err
		}
		if err := os.Remove(t.instance); err != nil {
			return err
		}
	}
	list := filepath.Join(mountPoint, "uprobe_events")
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		event, _, _ := strings.Cut(line, " ")
		if group, ok := strings.CutPrefix(event, "p:"); ok && strings.HasPrefix(group, name+"/") {
			if err := add(list, "-:"+group+"\n"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Trace) write(file, value string) error {
	if err := os.WriteFile(filepath.Join(t.instance, file), []byte(value), 0o600); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

func add(list, definition string) error {
	file, err := os.OpenFile(list, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(definition)
	return errors.Join(err, file.Close())
}

// Programs returns the paths of QEMU in the images that a node's containerd has unpacked.
func Programs(containerd string) ([]string, error) {
	found, err := filepath.Glob(
		filepath.Join(containerd, "io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/usr/bin/qemu-system-x86_64"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no image with QEMU is unpacked below %s: %w", containerd, fs.ErrNotExist)
	}
	return found, err
}
