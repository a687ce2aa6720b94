// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
)

// Cut disconnects a node's network. Processes on the node keep running, without connections to others.
func (m *Machine) Cut(ctx context.Context, node string) error { return m.setCable(ctx, node, "down") }

// Mend connects a node's network again.
func (m *Machine) Mend(ctx context.Context, node string) error { return m.setCable(ctx, node, "up") }

// setCable sets the machine's end of a node's virtual Ethernet pair up or down. If it is down, the node's end has no
// carrier, but keeps its addresses and routes.
func (m *Machine) setCable(ctx context.Context, node, state string) error {
	if !process.Alive(m.holder(node)) {
		return fmt.Errorf("there is no node %q: the nodes are %s", node, strings.Join(m.nodeNames(), " "))
	}
	_, err := process.Run(ctx, "ip", "link", "set", plan.Link(node), state)
	return err
}

// cut reports whether a node's network is disconnected or does not exist.
func (m *Machine) cut(node string) bool {
	link, err := net.InterfaceByName(plan.Link(node))
	return err != nil || link.Flags&net.FlagUp == 0
}
