// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/image"
	"github.com/vireo-project/vireo/hack/cluster/internal/pki"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// Up creates the cluster, or starts components that do not run.
func (m *Machine) Up(ctx context.Context, o Options) error {
	rendered, shape, err := render(m, o)
	if err != nil {
		return err
	}
	if reason := m.differs(shape); reason != "" {
		m.say("%s: it is removed first", reason)
		if err := m.Down(ctx); err != nil {
			return err
		}
	}
	return m.startMissing(ctx, o, rendered, shape)
}

// Start starts those components of the existing cluster that do not run. In contrast to Up, it never removes a cluster.
func (m *Machine) Start(ctx context.Context) error {
	if m.record.Empty() || len(m.record.Options) == 0 {
		return errors.New("there is no cluster: create one with up")
	}
	var o Options
	if err := json.Unmarshal(m.record.Options, &o); err != nil {
		return fmt.Errorf("read the recorded options: %w", err)
	}
	rendered, shape, err := render(m, o)
	if err != nil {
		return err
	}
	if reason := m.differs(shape); reason != "" {
		return fmt.Errorf("%s: up would replace it", reason)
	}
	return m.startMissing(ctx, o, rendered, shape)
}

// startMissing starts the components that do not run.
func (m *Machine) startMissing(ctx context.Context, o Options, rendered config.Cluster, shape string) error {
	begin := time.Now()
	if m.complete(ctx, rendered) {
		if err := m.writeCloneKubeconfig(o.Clone); err != nil {
			return err
		}
		m.say("the cluster of %d node(s) is up already: export KUBECONFIG=%s", len(rendered.Plan.Nodes), Kubeconfig(o.Clone))
		return nil
	}
	if m.record.Cgroup == "" {
		if err := m.conflicts(rendered.Plan); err != nil {
			return err
		}
	}
	if err := m.step("prepare the machine", func() error { return m.prepare(ctx, o, rendered, shape) }); err != nil {
		return err
	}
	for _, component := range rendered.ControlPlane {
		if err := m.step("start "+component.Name, func() error { return m.ensure(ctx, component) }); err != nil {
			return err
		}
		if component.Name == "kube-apiserver" {
			if err := m.step("write kubeconfig, apply defaults",
				func() error { return m.afterAPIServer(ctx, o, rendered) }); err != nil {
				return err
			}
		}
	}
	if err := m.startNodes(ctx, rendered); err != nil {
		return err
	}
	m.say("the cluster of %d node(s) is up after %.1f s: export KUBECONFIG=%s", len(rendered.Plan.Nodes),
		time.Since(begin).Seconds(), Kubeconfig(o.Clone))
	return nil
}

func render(m *Machine, o Options) (config.Cluster, string, error) {
	p, err := plan.New(o.Plan)
	if err != nil {
		return config.Cluster{}, "", err
	}
	f, err := facts(o)
	if err != nil {
		return config.Cluster{}, "", err
	}
	rendered, err := config.Render(p, m.layout, f)
	if err != nil {
		return config.Cluster{}, "", err
	}
	shape, err := rendered.Shape()
	return rendered, shape, err
}

// differs returns how the recorded cluster differs from the requested one.
func (m *Machine) differs(shape string) string {
	if m.record.Empty() {
		return ""
	}
	if m.record.Shape != shape {
		return fmt.Sprintf("there is a cluster of %d node(s), made from %s, of another shape or from before a reboot",
			m.record.Nodes, m.record.Clone)
	}
	if ends, err := pki.Ends(m.layout.PKI("ca.crt")); err == nil && time.Until(ends) < 30*24*time.Hour {
		return "the cluster's certificates end soon"
	}
	return ""
}

// complete reports whether everything runs and every node is ready.
func (m *Machine) complete(ctx context.Context, c config.Cluster) bool {
	for _, component := range all(c) {
		if !m.alive(component.Name) {
			return false
		}
	}
	for _, node := range c.Plan.Nodes {
		if m.cut(node.Name) {
			return false
		}
	}
	ready, err := m.readyNodes(ctx)
	return err == nil && ready == len(c.Plan.Nodes)
}

// all returns all components, in the order of their start.
func all(c config.Cluster) []config.Component {
	list := c.ControlPlane
	for _, node := range c.Plan.Nodes {
		list = append(list[:len(list):len(list)], c.Nodes[node.Name]...)
	}
	return list
}

// prepare creates control groups, directories, certificates, files and the
// bridge, if they do not exist.
func (m *Machine) prepare(ctx context.Context, o Options, c config.Cluster, shape string) error {
	if err := m.begin(o, c, shape); err != nil {
		return err
	}
	if err := m.tree.Create(plan.HostCgroup); err != nil {
		return err
	}
	if _, err := os.Stat(m.layout.PKI("sa.key")); errors.Is(err, os.ErrNotExist) {
		// The service accounts' key is written last: if it is missing, all certificates are created again.
		if err := pki.Make(m.layout.PKI(""), time.Now(), c.Certificates); err != nil {
			return err
		}
	}
	for path, content := range c.Files {
		if err := replace(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	if err := m.copyPrograms(o); err != nil {
		return err
	}
	if err := m.mountPool(ctx, o); err != nil {
		return err
	}
	return m.makeBridge(ctx, c.Plan)
}

// begin records that there is a cluster, before anything is created.
func (m *Machine) begin(o Options, c config.Cluster, shape string) error {
	boot, err := record.BootID()
	if err != nil {
		return err
	}
	missing, err := m.tree.Missing()
	if err != nil {
		return err
	}
	options, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the options: %w", err)
	}
	return m.record.Change(func(r *record.Record) {
		if r.Cgroup == "" {
			r.SubtreeControl = missing
		}
		r.Options = options
		r.Clone, r.Nodes, r.Shape, r.BootID, r.Cgroup = o.Clone, len(c.Plan.Nodes), shape, boot, plan.Cgroup
	})
}

// copyPrograms copies this program and pause to a directory outside of the
// clone, and writes the sandbox image.
func (m *Machine) copyPrograms(o Options) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find our own program: %w", err)
	}
	for name, from := range map[string]string{"cluster": self, "pause": o.Pause} {
		program, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("copy program %s: %w", name, err)
		}
		if err := replace(m.layout.Binary(name), program, 0o755); err != nil {
			return err
		}
		if name != "pause" {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(m.layout.PauseArchive()), 0o755); err != nil {
			return fmt.Errorf("make the folder of the images: %w", err)
		}
		archive, err := os.Create(m.layout.PauseArchive())
		if err != nil {
			return fmt.Errorf("make the sandbox image: %w", err)
		}
		if err := errors.Join(image.WriteStatic(archive, image.Pause, "pause", program), archive.Close()); err != nil {
			return err
		}
	}
	return nil
}

// replace replaces a file atomically: a running program keeps the old one.
func replace(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.WriteFile(path+".new", content, mode); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("replace a file: %w", err)
	}
	return nil
}

// startNodes starts all nodes in parallel.
func (m *Machine) startNodes(ctx context.Context, c config.Cluster) error {
	if err := m.step("prepare the nodes", func() error { return m.prepareNodes(ctx, c) }); err != nil {
		return err
	}
	// The namespaces and interfaces of all nodes are created first, because each node has routes to the others.
	for _, node := range c.Plan.Nodes {
		if err := m.step(node.Name+": namespaces, network", func() error { return m.makeNode(ctx, c, node) }); err != nil {
			return err
		}
	}
	var group errgroup.Group
	for _, node := range c.Plan.Nodes {
		group.Go(func() error { return m.startNode(ctx, c, node) })
	}
	return group.Wait()
}
