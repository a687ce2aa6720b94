// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package trace traces QEMUs in the kernel: when their guests' CPUs are started and stopped, when they begin to send memory, when they
// end, and when which process writes to a file. Each event is recorded on the thread that causes it, with the kernel's monotonic clock.
// The kernel orders the events; their times are in microseconds.
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
	// name is that of our trace instance and of our probes: those of others stay as they are.
	name = "vireo_chaos"
	// mountPoint is our own, so that nobody's is used or missed.
	mountPoint = "/run/vireo-chaos/tracing"
	// tracefsMagic is TRACEFS_MAGIC of the kernel's include/uapi/linux/magic.h.
	tracefsMagic = 0x74726163
	// bufferKiB is how many events wait for us, for each CPU, before the kernel loses some.
	bufferKiB = "8192"
)

// Trace is what the kernel tells.
type Trace struct {
	instance string
	// lock is held as long as the trace is ours.
	lock   *os.File
	pipe   *os.File
	events chan oracle.Event
	// err is why the reading ended; it is set before events is closed.
	err error
}

// probe is a function of QEMU's whose begin is an event.
type probe struct {
	// symbol is the function, and arguments are what is read of its arguments (the kernel's Documentation/trace/uprobetracer.rst,
	// in the registers of the System V ABI of x86-64).
	symbol, arguments string
}

// probes are by the event's name. vm_state_notify(bool running, RunState state) is called right before the CPUs are let run, and
// when they have stopped: see vm_prepare_start and do_vm_stop in QEMU's system/cpus.c.
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

// acquire makes sure that no other process traces: what it has would be removed as what an earlier one left. The lock ends with
// the process.
func acquire() (*os.File, error) {
	lock, err := os.Open(filepath.Dir(mountPoint))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another process traces QEMUs on this machine, as `make chaos` does: lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}

// set makes an instance with the events.
func (t *Trace) set(programs []string) error {
	if err := os.Mkdir(t.instance, 0o700); err != nil {
		return fmt.Errorf("make a trace instance: %w", err)
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

// writes are the kernel's events of a process that writes to a file, with what else is asked of them: directly (IOMAP_WRITE is 1, see
// the kernel's include/linux/iomap.h), through the page cache, or as a hole.
var writes = map[string]string{
	"iomap/iomap_iter": " && flags & 1 && length > 0", "ext4/ext4_write_begin": "", "ext4/ext4_da_write_begin": "",
	"ext4/ext4_fallocate_enter": "", "ext4/ext4_punch_hole": "",
}

// ext4Magic is EXT4_SUPER_MAGIC of the kernel's include/uapi/linux/magic.h.
const ext4Magic = 0xef53

// Watch makes each write to a file an event. It takes the place of the file that was watched before.
func (t *Trace) Watch(path string) error {
	var stat unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Stat(path, &stat), unix.Statfs(path, &system)); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if system.Type != ext4Magic {
		return fmt.Errorf("%s is not on an ext4 file system: it is not known here how the kernel traces writes to another", path)
	}
	// As the kernel keeps device numbers: 20 bits of minor.
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

// Events are what happens, in its order. The channel is closed when the trace ends.
func (t *Trace) Events() <-chan oracle.Event { return t.events }

// Err is why the trace has ended by itself.
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

// Stop ends the trace and removes what was made for it.
func (t *Trace) Stop() error {
	err := t.pipe.Close()
	for range t.events {
	}
	return errors.Join(err, t.clear(), unix.Unmount(mountPoint, 0), t.lock.Close())
}

// clear removes our instance and our probes, if they are there.
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

// Programs are the QEMUs in the images that a node's containerd has unpacked.
func Programs(containerd string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(containerd, "io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs/usr/bin/qemu-system-x86_64"))
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("no image with QEMU is unpacked below %s: %w", containerd, fs.ErrNotExist)
	}
	return found, err
}
