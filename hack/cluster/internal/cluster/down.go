// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/loop"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

const (
	// downTimeout bounds each step of taking the cluster down.
	downTimeout = time.Minute
	// driverTimeout bounds how long the CSI driver may take to exit before it is killed.
	driverTimeout = 10 * time.Second
)

// Down removes everything that was recorded, users before what they use. It can
// be repeated after a failure.
func (m *Machine) Down(ctx context.Context) error {
	if m.record.Empty() {
		m.say("there is no cluster to take down")
		return m.removeFiles()
	}
	start := time.Now()
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"end all processes", m.endProcesses},
		{"remove interfaces and routes", m.removeLinks},
		{"detach loop devices, unmount volumes", m.detachLoops},
		{"remove control groups", m.removeCgroups},
		{"restore sysctls", m.restoreSysctls},
		{"remove mount points", m.removeDirectories},
		{"check that nothing is left", m.checkNothingLeft},
	}
	for _, s := range steps {
		bounded, cancel := context.WithTimeout(ctx, downTimeout)
		err := m.step(s.name, func() error { return s.do(bounded) })
		cancel()
		if err != nil {
			return fmt.Errorf("the cluster is not down yet, repeat the command: %w", err)
		}
	}
	if err := m.step("remove files", m.removeFiles); err != nil {
		return err
	}
	m.say("the cluster is down after %.1f s", time.Since(start).Seconds())
	return nil
}

// endProcesses kills all processes in the cluster's control groups: the components, the
// containers' shims and everything inside containers. A namespace ends with its
// last process, and its mounts end with it.
func (m *Machine) endProcesses(ctx context.Context) error {
	// The driver may complete its calls, because a filesystem that it leaves frozen when it is killed keeps its loop
	// device in use.
	bounded, cancel := context.WithTimeout(ctx, driverTimeout)
	_ = process.Stop(bounded, m.record.Process(config.DriverController), syscall.SIGTERM)
	cancel()
	if m.record.Cgroup != "" {
		if err := m.tree.Kill(ctx, m.record.Cgroup); err != nil {
			return err
		}
	}
	// A recorded process may have been moved to another group.
	for _, p := range m.record.Processes {
		if err := process.Stop(ctx, p, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) removeLinks(ctx context.Context) error {
	for _, name := range slices.Backward(m.record.Links) {
		if err := m.unplug(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// unplug deletes an interface. The kernel may delete it at the same time,
// because it deletes both ends of a virtual Ethernet pair together.
func (m *Machine) unplug(ctx context.Context, name string) error {
	exists := func() bool {
		_, err := os.Stat("/sys/class/net/" + name)
		return err == nil
	}
	if !exists() {
		return nil
	}
	if _, err := process.Run(ctx, "ip", "link", "delete", name); err != nil && exists() {
		return err
	}
	return nil
}

// detachLoops detaches the devices of volumes, unmounts the pool that contains the volumes, and detaches its device.
func (m *Machine) detachLoops(ctx context.Context) error {
	for {
		devices, err1 := loop.Ours(m.layout.Root)
		mounts, err2 := mountsBelow(m.layout.Root)
		if err := errors.Join(err1, err2); err != nil || len(devices)+len(mounts) == 0 {
			return err
		}
		var busy error
		for _, device := range devices {
			// The device may have been detached since it was listed.
			_, err := process.Run(ctx, "losetup", "--detach", device)
			busy = errors.Join(busy, err)
		}
		for _, mount := range slices.Backward(mounts) {
			_, err := process.Run(ctx, "umount", mount)
			busy = errors.Join(busy, err)
		}
		// A device that is in use is detached when its last user has ended. A mount namespace that another process has
		// created meanwhile contains a copy of the pool's mount.
		select {
		case <-ctx.Done():
			return errors.Join(busy,
				fmt.Errorf("loop devices %v stay attached: a process uses them, or has a copy of their mounts (grep -l %s /proc/*/mountinfo): %w",
					devices, m.layout.Root, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (m *Machine) removeCgroups(ctx context.Context) error {
	if m.record.Cgroup == "" {
		return nil
	}
	if err := m.tree.Remove(ctx, m.record.Cgroup); err != nil {
		return err
	}
	m.tree.Disable(m.record.SubtreeControl)
	return nil
}

func (m *Machine) restoreSysctls(context.Context) error {
	for name, value := range m.record.Sysctls {
		path := filepath.Join("/proc/sys", name)
		now, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(now)) == value {
			continue
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			return fmt.Errorf("restore a sysctl: %w", err)
		}
	}
	return nil
}

// removeDirectories removes the mount points that were created and are empty.
func (m *Machine) removeDirectories(context.Context) error {
	for _, directory := range slices.Backward(m.record.Directories) {
		err := os.Remove(directory)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) &&
			!errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("remove a mount point: %w", err)
		}
	}
	return nil
}

func (m *Machine) checkNothingLeft(ctx context.Context) error {
	for {
		left, err := m.left()
		if err != nil || len(left) == 0 {
			return err
		}
		// The kernel removes a namespace in the background.
		select {
		case <-ctx.Done():
			return fmt.Errorf("this is left: %s", strings.Join(left, "; "))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// removeFiles deletes the state and, last, the record.
func (m *Machine) removeFiles() error {
	// The content of a mount below the directory would also be deleted.
	if mounts, err := mountsBelow(m.layout.Root); err != nil || len(mounts) > 0 {
		return errors.Join(err, fmt.Errorf("something is mounted below %s: %v", m.layout.Root, mounts))
	}
	if m.record.Clone != "" {
		// Remove only what up has written, and only if it is still there.
		if err := os.Remove(Kubeconfig(m.record.Clone)); err == nil {
			_ = os.Remove(filepath.Dir(Kubeconfig(m.record.Clone)))
		}
	}
	entries, err := os.ReadDir(m.layout.Root)
	if err != nil {
		return fmt.Errorf("list the state: %w", err)
	}
	for _, entry := range entries {
		path := m.layout.Path(entry.Name())
		if path == m.layout.Record() || path == m.layout.Lock() {
			continue
		}
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove the state: %w", err)
		}
	}
	if err := m.record.Remove(); err != nil {
		return err
	}
	// The lock's file stays open until the end, even if it is removed here.
	if err := os.RemoveAll(m.layout.Root); err != nil {
		return fmt.Errorf("remove the state: %w", err)
	}
	return nil
}

// Leftovers returns everything of a cluster on the host, recorded or not.
func (m *Machine) Leftovers() ([]string, error) {
	left, err := m.left()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(m.layout.Root); err == nil {
		left = append(left, "folder "+m.layout.Root)
	}
	for _, directory := range m.record.Directories {
		if _, err := os.Stat(directory); err == nil {
			left = append(left, "folder "+directory)
		}
	}
	return left, nil
}

// left lists processes, control groups, interfaces, mounts, loop devices and namespaces.
func (m *Machine) left() ([]string, error) {
	var left []string
	pids, err := m.tree.Processes(plan.Cgroup)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		left = append(left, fmt.Sprintf("process %d %s", pid, strings.TrimSpace(string(name))))
	}
	if m.tree.Exists(plan.Cgroup) {
		left = append(left, "control group "+plan.Cgroup)
	}
	found, err := filepath.Glob("/sys/class/net/vireo*")
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	for _, path := range found {
		left = append(left, "interface "+filepath.Base(path))
	}
	mounts, err := mountsBelow(m.layout.Root)
	if err != nil {
		return nil, err
	}
	for _, mount := range mounts {
		left = append(left, "mount "+mount)
	}
	devices, err := loop.Ours(m.layout.Root)
	if err != nil {
		return nil, err
	}
	for _, device := range devices {
		left = append(left, "loop device "+device)
	}
	return append(left, m.namespacesLeft()...), nil
}

// namespacesLeft returns recorded namespaces in which a process still runs.
func (m *Machine) namespacesLeft() []string {
	nodeOf := map[string]string{}
	for node, names := range m.record.Namespaces {
		for _, name := range names {
			nodeOf[name] = node
		}
	}
	var left []string
	links, err := filepath.Glob("/proc/[0-9]*/ns/*")
	if err != nil {
		return nil
	}
	for _, link := range links {
		name, err := os.Readlink(link)
		if err != nil {
			continue // the process has ended
		}
		if node, found := nodeOf[name]; found {
			left = append(left, fmt.Sprintf("namespace %s of %s", name, node))
			delete(nodeOf, name)
		}
	}
	return left
}

// mountsBelow lists mounts of the machine's own mount namespace.
func mountsBelow(root string) ([]string, error) {
	file, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	defer func() { _ = file.Close() }()
	var found []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && (fields[1] == root || strings.HasPrefix(fields[1], root+"/")) {
			found = append(found, fields[1])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the mounts: %w", err)
	}
	return found, nil
}

// nodeNames returns the names of the recorded cluster's nodes.
func (m *Machine) nodeNames() []string {
	var names []string
	for component := range m.record.Processes {
		if node, program, found := strings.Cut(component, "/"); found && program == "holder" {
			names = append(names, node)
		}
	}
	slices.Sort(names)
	return names
}
