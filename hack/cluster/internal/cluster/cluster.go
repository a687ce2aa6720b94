// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package cluster starts and removes the local cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/vireo-project/vireo/hack/cluster/internal/cgroup"
	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/layout"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// Options of Up.
type Options struct {
	Plan plan.Options
	// Clone is the directory whose .cluster/kubeconfig is written.
	Clone string
	// Kubernetes, Etcd, Containerd, CoreDNS and Multus are directories of built
	// programs, Pause is a program.
	Kubernetes, Etcd, Containerd, CoreDNS, Multus, Pause string
	// CSIDriver and CSISidecars are directories too, or empty for volumes of the provisioner.
	CSIDriver, CSISidecars string
	// ExclusiveCPUs means that the kubelet gives whole CPUs to guaranteed Pods. For one node only: kubelets do not share.
	ExclusiveCPUs bool
}

// Machine is the only cluster of this host.
type Machine struct {
	layout layout.Layout
	tree   cgroup.Tree
	record *record.File
	out    io.Writer
	// speaking serializes the output of nodes that are started in parallel.
	speaking sync.Mutex
}

// Open reads the cluster of the machine. If exclusive is set, other commands
// that change the cluster wait until the returned function is called.
func Open(ctx context.Context, out io.Writer, exclusive bool) (*Machine, func(), error) {
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("nodes need namespaces, mounts and control groups: run this as root")
	}
	m := &Machine{layout: layout.Layout{Root: layout.Root}, out: out}
	release := func() {}
	var err error
	if exclusive {
		if release, err = lock(ctx, m.layout.Lock()); err != nil {
			return nil, nil, err
		}
	}
	if err := m.load(exclusive); err != nil {
		release()
		return nil, nil, err
	}
	return m, release, nil
}

func (m *Machine) load(exclusive bool) error {
	var err error
	if m.tree, err = cgroup.Mounted(); err != nil {
		return err
	}
	if m.record, err = record.Load(m.layout.Record()); err != nil || !exclusive {
		return err
	}
	boot, err := record.BootID()
	if err != nil {
		return err
	}
	return m.record.ForgetBoot(boot)
}

// lock takes the host's lock. The lock file is removed with the cluster, so a
// waiting process may get the lock of a deleted file; it then retries.
func lock(ctx context.Context, path string) (func(), error) {
	for {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("make the folder of the lock: %w", err)
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open the lock: %w", err)
		}
		if err := waitForLock(ctx, file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
		held, err1 := file.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, named) {
			return func() { _ = file.Close() }, nil
		}
		_ = file.Close()
	}
}

func waitForLock(ctx context.Context, file *os.File) error {
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", file.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another command changes the cluster (it has the lock %s): %w", file.Name(), ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// step runs a step, and prints its duration, or where its log is if it failed.
func (m *Machine) step(name string, do func() error) error {
	start := time.Now()
	if err := do(); err != nil {
		m.say("%-34s failed after %.1f s", name, time.Since(start).Seconds())
		return fmt.Errorf("%s: %w", name, err)
	}
	m.say("%-34s %5.1f s", name, time.Since(start).Seconds())
	return nil
}

// say prints a line of progress; nothing depends on whether it can be printed.
func (m *Machine) say(format string, arguments ...any) {
	m.speaking.Lock()
	defer m.speaking.Unlock()
	_, _ = fmt.Fprintf(m.out, format+"\n", arguments...)
}

// kubeconfig returns the path of the administrator's kubeconfig in the state directory.
func (m *Machine) kubeconfig() string { return m.layout.Kubeconfig("admin") }

// Kubeconfig returns the path of the administrator's kubeconfig in a clone.
func Kubeconfig(clone string) string { return filepath.Join(clone, ".cluster", "kubeconfig") }

// holder returns the process that keeps the node's namespaces.
func (m *Machine) holder(node string) record.Process {
	return m.record.Process(config.Holder(node))
}
