// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// cutTable is the nftables table in a node's network namespace that breaks connections.
const cutTable = "vireo_chaos"

// agentsPort is the port of the connection between agents (docs/adr/0023-migration-protocol.md).
const agentsPort = 8187

// betweenAgents, betweenQEMUs and toAPIServer are nftables rules that drop the packets of a connection.
func betweenAgents(string) string {
	return fmt.Sprintf("tcp dport %d drop\ntcp sport %d drop", agentsPort, agentsPort)
}

func betweenQEMUs(string) string {
	ports := fmt.Sprintf("{ %d, %d }", hypervisor.MigrationMemoryPort, hypervisor.MigrationDisksPort)
	return "tcp dport " + ports + " drop\ntcp sport " + ports + " drop"
}

func toAPIServer(server string) string {
	host, port, _ := strings.Cut(server, ":")
	return fmt.Sprintf("ip daddr %s tcp dport %s drop\nip saddr %s tcp sport %s drop", host, port, host, port)
}

// cut drops packets on a node, also those of established connections. The rules apply after Service addresses are
// translated.
func (d *damage) cut(ctx context.Context, h *harness, node string, rules func(apiServer string) string) error {
	config, err := clientcmd.BuildConfigFromFlags("", h.cluster.kubeconfig())
	if err != nil {
		return err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cuts[node] = true
	h.observer.note("connections cut on %s", node)
	_, err = h.cluster.enter(ctx, node, cutRuleset(rules(server.Host)), "nft", "-f", "-")
	return err
}

// cutRuleset is an nftables script that adds rules to the table. Rules of another fault in the table stay.
func cutRuleset(rules string) string {
	var set strings.Builder
	set.WriteString("table inet " + cutTable + " {\n")
	for _, hook := range []string{"input", "forward", "output"} {
		// After the translation of Service addresses, and before other chains accept packets.
		fmt.Fprintf(&set, "chain %s {\ntype filter hook %s priority -10; policy accept;\n%s\n}\n", hook, hook, rules)
	}
	set.WriteString("}\n")
	return set.String()
}
