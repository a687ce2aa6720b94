// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// secondMTU is the MTU of all interfaces of the cluster, plan.MTU.
var secondMTU = strconv.Itoa(plan.MTU)

// Multus configures Multus in front of each node's network plugin, with a second network of the nodes, or removes both.
// Running Pods keep their networks, which are removed with the Pod's network namespace.
func (m *Machine) Multus(ctx context.Context, enabled bool) error {
	if m.record.Empty() {
		return errNone
	}
	for _, node := range m.nodeNames() {
		do := m.removeMultus
		if enabled {
			do = m.addMultus
		}
		if err := m.step(node+": Multus", func() error { return do(ctx, node) }); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) addMultus(ctx context.Context, node string) error {
	if err := m.plugInSecond(ctx, node); err != nil {
		return err
	}
	content, err := os.ReadFile(m.layout.Config(node + "-multus.conf"))
	if err != nil {
		return fmt.Errorf("read the configuration of Multus on %s: %w", node, err)
	}
	return replace(m.layout.Node(node, "net.d", config.MultusFile), content, 0o600)
}

func (m *Machine) removeMultus(ctx context.Context, node string) error {
	if err := os.Remove(m.layout.Node(node, "net.d", config.MultusFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove Multus from %s: %w", node, err)
	}
	return m.unplug(ctx, secondLink(node))
}

// secondLink returns the name of the machine's end of a node's second virtual Ethernet pair.
func secondLink(node string) string { return "vireo-" + node + "b" }

// plugInSecond connects the machine's bridge to a bridge in the node by a second virtual Ethernet pair, without
// addresses: what is connected to that bridge shares a network with the nodes and the machine.
func (m *Machine) plugInSecond(ctx context.Context, node string) error {
	link := secondLink(node)
	if err := m.record.Change(func(r *record.Record) { r.AddLink(link) }); err != nil {
		return err
	}
	if err := m.unplug(ctx, link); err != nil {
		return err
	}
	holder := m.holder(node).PID
	if _, err := process.Run(ctx, process.Enter(holder, "ip", "link", "show", config.SecondBridge)...); err != nil {
		if _, err := process.Run(ctx, process.Enter(holder,
			"ip", "link", "add", config.SecondBridge, "mtu", secondMTU, "type", "bridge", "forward_delay", "0")...); err != nil {
			return err
		}
	}
	for _, command := range [][]string{
		{"ip", "link", "add", link, "mtu", secondMTU, "type", "veth", "peer", "name", "eth1", "mtu", secondMTU, "netns", strconv.Itoa(holder)},
		{"ip", "link", "set", link, "master", plan.Bridge, "up"},
		process.Enter(holder, "ip", "link", "set", "eth1", "master", config.SecondBridge, "up"),
		process.Enter(holder, "ip", "link", "set", config.SecondBridge, "up"),
	} {
		if _, err := process.Run(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}
