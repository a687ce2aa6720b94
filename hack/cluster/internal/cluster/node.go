// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/layout"
	"github.com/vireo-project/vireo/hack/cluster/internal/loop"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// machineSysctls are the sysctls that a kubelet sets for the whole machine, see
// setupKernelTunables in k8s.io/kubernetes/pkg/kubelet/cm. Their former values
// are restored when the cluster is removed.
var machineSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// makeBridge creates the bridge to which nodes are connected.
func (m *Machine) makeBridge(ctx context.Context, p plan.Plan) error {
	if err := m.record.Change(func(r *record.Record) { r.AddLink(plan.Bridge) }); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/class/net/" + plan.Bridge); errors.Is(err, fs.ErrNotExist) {
		// By default, a bridge has the lowest hardware address of its ports, which changes with the ports. A node that has
		// cached the former address would then have no connection until its neighbor entry expires, which takes almost a
		// minute.
		if _, err := process.Run(ctx, "ip", "link", "add", plan.Bridge, "address", plan.BridgeHardware,
			"mtu", strconv.Itoa(plan.MTU), "type", "bridge"); err != nil {
			return err
		}
	}
	address := fmt.Sprintf("%s/%d", p.Host, p.NodeCIDR.Bits())
	if _, err := process.Run(ctx, "ip", "address", "replace", address, "dev", plan.Bridge); err != nil {
		return err
	}
	_, err := process.Run(ctx, "ip", "link", "set", plan.Bridge, "up")
	return err
}

// prepareNodes prepares the host for all nodes.
func (m *Machine) prepareNodes(ctx context.Context, c config.Cluster) error {
	if err := m.releaseVolumes(ctx, c.Plan); err != nil {
		return err
	}
	for _, mount := range layout.NodeMounts() {
		if err := m.makeMountPoint(mount.Target); err != nil {
			return err
		}
	}
	for _, name := range machineSysctls {
		if err := m.keepSysctl(name); err != nil {
			return err
		}
	}
	for _, node := range c.Plan.Nodes {
		for _, mount := range layout.NodeMounts() {
			if err := os.MkdirAll(m.layout.Node(node.Name, mount.Name), 0o755); err != nil {
				return fmt.Errorf("make a folder of %s: %w", node.Name, err)
			}
		}
		if err := m.tree.Create(node.SystemCgroup); err != nil {
			return err
		}
	}
	return nil
}

// makeMountPoint creates the directories of the machine on which a node mounts
// its own, and records those that did not exist.
func (m *Machine) makeMountPoint(path string) error {
	var missing []string
	for p := path; p != "/"; p = filepath.Dir(p) {
		if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append([]string{p}, missing...)
	}
	for _, directory := range missing {
		if err := m.record.Change(func(r *record.Record) { r.AddDirectory(directory) }); err != nil {
			return err
		}
		if err := os.Mkdir(directory, 0o755); err != nil {
			return fmt.Errorf("make a mount point: %w", err)
		}
	}
	return nil
}

func (m *Machine) keepSysctl(name string) error {
	if _, kept := m.record.Sysctls[name]; kept {
		return nil
	}
	value, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read a sysctl: %w", err)
	}
	return m.record.Change(func(r *record.Record) { r.Sysctls[name] = strings.TrimSpace(string(value)) })
}

// makeNode creates a node's namespaces and its network. A node whose namespaces
// do not exist any more starts like a rebooted machine, without processes.
func (m *Machine) makeNode(ctx context.Context, c config.Cluster, n plan.Node) error {
	holder := c.Nodes[n.Name][0]
	if m.alive(holder.Name) {
		return m.Mend(ctx, n.Name)
	}
	if err := m.switchOff(ctx, n); err != nil {
		return err
	}
	ready := m.layout.Node(n.Name, "ready")
	if err := os.Remove(ready); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("prepare %s: %w", n.Name, err)
	}
	if err := m.start(holder); err != nil {
		return err
	}
	if err := m.waitForFile(ctx, holder.Name, ready); err != nil {
		return err
	}
	if err := m.keepNamespaces(n.Name); err != nil {
		return err
	}
	return m.plugIn(ctx, c.Plan, n)
}

// switchOff kills all processes of a node, and removes the control groups of
// its containers: a kubelet waits three seconds for each leftover one.
func (m *Machine) switchOff(ctx context.Context, n plan.Node) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := m.tree.Kill(ctx, n.Cgroup); err != nil {
		return err
	}
	if err := m.tree.Remove(ctx, n.Cgroup); err != nil {
		return err
	}
	return m.tree.Create(n.SystemCgroup)
}

// releaseVolumes detaches the loop devices that kubelets created on top of
// block volumes, if no node runs: after a reboot there would be none either,
// and they would keep the device of a deleted volume.
func (m *Machine) releaseVolumes(ctx context.Context, p plan.Plan) error {
	for _, n := range p.Nodes {
		if m.alive(config.Holder(n.Name)) {
			return nil
		}
	}
	devices, err := loop.Stacked(m.layout.Root)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if _, err := process.Run(ctx, "losetup", "--detach", device); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) waitForFile(ctx context.Context, component, file string) error {
	for range 500 {
		if _, err := os.Stat(file); err == nil {
			return nil
		}
		if !m.alive(component) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", component, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s did not come up, its log is %s", component, m.layout.Log(component))
}

// keepNamespaces records the namespaces of the node, so that a namespace that
// outlives the cluster is detected.
func (m *Machine) keepNamespaces(node string) error {
	var names []string
	for _, kind := range []string{"mnt", "net", "uts"} {
		name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", m.holder(node).PID, kind))
		if err != nil {
			return fmt.Errorf("read the namespaces of %s: %w", node, err)
		}
		names = append(names, name)
	}
	return m.record.Change(func(r *record.Record) { r.Namespaces[node] = names })
}

// plugIn connects a node to the bridge by a virtual Ethernet pair, and adds routes to the Pods on both sides.
func (m *Machine) plugIn(ctx context.Context, p plan.Plan, n plan.Node) error {
	if err := m.record.Change(func(r *record.Record) { r.AddLink(n.Link) }); err != nil {
		return err
	}
	holder := m.holder(n.Name).PID
	// The pair of an earlier holder is removed with its namespace, shortly after the last process in it has ended.
	if err := m.unplug(ctx, n.Link); err != nil {
		return err
	}
	mtu := strconv.Itoa(plan.MTU)
	outside := [][]string{
		{"ip", "link", "add", n.Link, "mtu", mtu, "type", "veth", "peer", "name", "eth0", "mtu", mtu, "netns", strconv.Itoa(holder)},
		{"ip", "link", "set", n.Link, "master", plan.Bridge, "up"},
	}
	inside := [][]string{
		{"ip", "address", "add", fmt.Sprintf("%s/%d", n.IP, p.NodeCIDR.Bits()), "dev", "eth0"},
		{"ip", "link", "set", "eth0", "up"},
		{"ip", "route", "add", "default", "via", p.Host.String()},
	}
	for _, other := range p.Nodes {
		if other.Name != n.Name {
			inside = append(inside, []string{"ip", "route", "add", other.PodCIDR.String(), "via", other.IP.String()})
		}
	}
	for _, command := range outside {
		if _, err := process.Run(ctx, command...); err != nil {
			return err
		}
	}
	for _, command := range inside {
		if _, err := process.Run(ctx, process.Enter(holder, command...)...); err != nil {
			return err
		}
	}
	_, err := process.Run(ctx, "ip", "route", "replace", n.PodCIDR.String(), "via", n.IP.String(), "dev", plan.Bridge)
	return err
}

// startNode starts a node's programs and returns when Pods can run on it.
func (m *Machine) startNode(ctx context.Context, c config.Cluster, n plan.Node) error {
	// The Node's status in the API may be from before its kubelet was killed.
	var since time.Time
	if !m.alive(n.Name + "/kubelet") {
		since = time.Now()
	}
	for _, component := range c.Nodes[n.Name][1:] {
		if err := m.step("start "+component.Name, func() error { return m.ensure(ctx, component) }); err != nil {
			return err
		}
		if component.Name != n.Name+"/containerd" {
			continue
		}
		if err := m.step(n.Name+": import the sandbox image", func() error {
			return m.importImage(ctx, c, n.Name, m.layout.PauseArchive())
		}); err != nil {
			return err
		}
	}
	return m.step(n.Name+": wait until it is ready", func() error { return m.admitNode(ctx, n, since) })
}

// importImage loads an archive into a node's containerd.
func (m *Machine) importImage(ctx context.Context, c config.Cluster, node, archive string) error {
	ctr := filepath.Join(filepath.Dir(c.Nodes[node][1].Command[0]), "ctr")
	return m.importWith(ctx, ctr, node, archive)
}

func (m *Machine) importWith(ctx context.Context, ctr, node, archive string) error {
	_, err := process.Run(ctx, process.Enter(m.holder(node).PID,
		ctr, "--address", config.ContainerdSocket, "--namespace", "k8s.io", "images", "import", archive)...)
	if err != nil {
		return fmt.Errorf("load %s into %s: %w", archive, node, err)
	}
	return nil
}
