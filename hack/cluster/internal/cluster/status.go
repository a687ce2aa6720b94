// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

// errNone is the error of commands that need a cluster.
var errNone = errors.New("there is no cluster: bring one up first")

// Status prints the components, and fails if one does not run.
func (m *Machine) Status(ctx context.Context) error {
	if m.record.Empty() {
		return errNone
	}
	m.say("cluster of %d node(s), made from %s, state and logs in %s", m.record.Nodes, m.record.Clone, m.layout.Root)
	var ended []string
	for _, name := range slices.Sorted(maps.Keys(m.record.Processes)) {
		state := "running"
		if !m.alive(name) {
			state = "ENDED"
			ended = append(ended, name)
		}
		m.say("  %-26s %-8s pid %-8d %s", name, state, m.record.Processes[name].PID, m.layout.Log(name))
	}
	for _, node := range m.nodeNames() {
		if m.cut(node) {
			m.say("  %-26s disconnected from the network: mend reconnects it", node)
		}
	}
	if len(ended) > 0 {
		return fmt.Errorf("%s ended: up starts again what does not run", strings.Join(ended, ", "))
	}
	ready, err := m.readyNodes(ctx)
	if err != nil {
		return err
	}
	m.say("%d of %d node(s) ready", ready, m.record.Nodes)
	return nil
}

// Env prints what tests and benchmarks need, as shell variables.
func (m *Machine) Env() error {
	if m.record.Empty() {
		return errNone
	}
	lines := []string{
		"KUBECONFIG=" + m.kubeconfig(),
		"VIREO_CLUSTER_STATE=" + m.layout.Root,
		"VIREO_CLUSTER_AUDIT_LOG=" + m.layout.AuditLog(),
		"VIREO_CLUSTER_LOGS=" + m.layout.Path("log"),
		"VIREO_CLUSTER_NODES='" + strings.Join(m.nodeNames(), " ") + "'",
	}
	if kubelet, err := m.programs("kubelet"); err == nil {
		lines = append(lines, "VIREO_CLUSTER_KUBECTL="+filepath.Join(kubelet, "kubectl"))
	}
	for _, name := range slices.Sorted(maps.Keys(m.record.Processes)) {
		variable := strings.ToUpper(strings.NewReplacer("/", "_", "-", "_").Replace(name))
		lines = append(lines, fmt.Sprintf("VIREO_CLUSTER_PID_%s=%d", variable, m.record.Processes[name].PID))
	}
	m.say("%s", strings.Join(lines, "\n"))
	return nil
}

// programs returns the directory of a program that nodes run.
func (m *Machine) programs(program string) (string, error) {
	for _, node := range m.nodeNames() {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.record.Process(node+"/"+program).PID))
		if err == nil {
			return filepath.Dir(path), nil
		}
	}
	return "", fmt.Errorf("no node runs a %s: bring the cluster up first", program)
}

// Load imports image archives into every node.
func (m *Machine) Load(ctx context.Context, archives []string) error {
	if m.record.Empty() {
		return errNone
	}
	directory, err := m.programs("containerd")
	if err != nil {
		return err
	}
	var group errgroup.Group
	for _, node := range m.nodeNames() {
		group.Go(func() error {
			for _, archive := range archives {
				path, err := filepath.Abs(archive)
				if err != nil {
					return fmt.Errorf("find %s: %w", archive, err)
				}
				if err := m.step("load "+filepath.Base(archive)+" into "+node, func() error {
					return m.importWith(ctx, filepath.Join(directory, "ctr"), node, path)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// Exec runs a command inside a node, with the standard input and output of this process.
func (m *Machine) Exec(ctx context.Context, node string, command []string) error {
	if !process.Alive(m.holder(node)) {
		return fmt.Errorf("there is no node %q: the nodes are %s", node, strings.Join(m.nodeNames(), " "))
	}
	line := process.Enter(m.holder(node).PID, command...)
	c := exec.CommandContext(ctx, line[0], line[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s on %s: %w", command[0], node, err)
	}
	return nil
}
