// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pods

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// dirWatches watches directories of all Pods with one inotify instance: a user may have 128 instances
// (fs.inotify.max_user_instances), and root's are shared by the whole node. A watch reports the first change only, so that a
// Pod that keeps changing a directory causes at most one event for each check.
type dirWatches struct {
	instance *os.File

	mu sync.Mutex
	// waiting are the channels to close, by watch descriptor. Pods may wait for the same directory.
	waiting map[int32]map[chan struct{}]struct{}
}

// newDirWatches creates an inotify instance. Close closes it.
func newDirWatches() (*dirWatches, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an inotify instance (see fs.inotify.max_user_instances): %w", err)
	}
	w := &dirWatches{instance: os.NewFile(uintptr(fd), "inotify"), waiting: map[int32]map[chan struct{}]struct{}{}}
	go w.read()
	return w, nil
}

// Close ends all watches without an event.
func (w *dirWatches) Close() { _ = w.instance.Close() }

// add watches a directory. The channel is closed when an entry is added or the directory is removed. The caller must call stop.
func (w *dirWatches) add(dir *os.File) (changed <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var wd int
	err = w.control(func(instance int) (err error) {
		wd, err = unix.InotifyAddWatch(instance, throughFD(dir),
			unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR|unix.IN_ONESHOT)
		return err
	})
	if err != nil {
		return nil, nil, &os.PathError{Op: "inotify_add_watch", Path: dir.Name(), Err: err}
	}
	key, c := int32(wd), make(chan struct{})
	if w.waiting[key] == nil {
		w.waiting[key] = map[chan struct{}]struct{}{}
	}
	w.waiting[key][c] = struct{}{}
	return c, func() { w.remove(key, c) }, nil
}

func (w *dirWatches) remove(wd int32, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.waiting[wd][c]; !ok {
		return
	}
	delete(w.waiting[wd], c)
	if len(w.waiting[wd]) > 0 {
		return
	}
	delete(w.waiting, wd)
	_ = w.control(func(instance int) error {
		_, err := unix.InotifyRmWatch(instance, uint32(wd))
		return err // It was removed if the directory was.
	})
}

// control calls a function with the descriptor, which stays open meanwhile.
func (w *dirWatches) control(do func(instance int) error) error {
	raw, err := w.instance.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// read handles events until the instance is closed.
func (w *dirWatches) read() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := w.instance.Read(buffer)
		if err != nil {
			return
		}
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			wd, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
			name := binary.NativeEndian.Uint32(events[12:])
			w.signal(wd, mask&unix.IN_Q_OVERFLOW != 0)
			events = events[unix.SizeofInotifyEvent+int(name):]
		}
	}
}

// signal closes the channels for a directory, or all channels after events were lost.
func (w *dirWatches) signal(wd int32, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := []int32{wd}
	if all {
		keys = slices.Collect(maps.Keys(w.waiting))
	}
	for _, key := range keys {
		for c := range w.waiting[key] {
			close(c)
		}
		delete(w.waiting, key)
	}
}
