// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/export/content"
	"github.com/vireo-project/vireo/internal/export/server"
)

func TestIssue(t *testing.T) {
	now := time.Now()
	lifetimes := clusterconfig.NewStore().Certificates()
	authority, _, _, err := (Authority{role: Exporter}).Advance(now, lifetimes)
	if err != nil {
		t.Fatal(err)
	}
	caEnd, _ := authority.End(now, lifetimes)
	for name, tc := range map[string]struct{ end, want time.Time }{
		"before the CA": {now.Add(time.Hour), now.Add(time.Hour)},
		"after the CA":  {caEnd.Add(time.Hour), caEnd},
	} {
		crt, key, err := authority.Issue(Subject{DNSNames: []string{"virt-export-e.default.svc"}}, now, tc.end)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(crt, key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority.Bundle())
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "virt-export-e.default.svc"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "virt-export-f.default.svc"}); err == nil {
			t.Errorf("%s: it is the certificate of another export", name)
		}
		if got := pair.Leaf.NotAfter; got.Sub(tc.want).Abs() > time.Second {
			t.Errorf("%s: it ends at %s, want %s", name, got, tc.want)
		}
	}
	if _, _, err := (Authority{role: Exporter}).Issue(Subject{}, now, now.Add(time.Hour)); err == nil {
		t.Error("there is no CA")
	}
}

// TestConnectionsOfAgentsToExporters connects agents to an exporter that reads the disks of a guest on node blue.
func TestConnectionsOfAgentsToExporters(t *testing.T) {
	const name, agentName = "virt-export-e.default.svc", "blue.virt-handler-backup"
	w := newWorld(t)
	exporter, agent := w.issue(t, Exporter, Subject{DNSNames: []string{name}}), w.issue(t, AgentBackup, AgentBackupSubject("blue"))
	var trusted []byte
	config := server.AgentTLS(func() (*tls.Certificate, error) { return exporter.Certificate, nil }, func() (*content.Backup, error) {
		return &content.Backup{Client: agentName, CA: string(trusted)}, nil
	})
	address := serve(t, config)
	dial := func(own Provider, trust Trust, serverName string) error {
		t.Helper()
		client, err := PullClient(own, trust, serverName)
		if err != nil {
			t.Fatal(err)
		}
		return connect(address, client)
	}
	if err := dial(agent, w.trust, name); err == nil {
		t.Error("the exporter has no authority to trust, and accepts an agent")
	}
	trusted = w.authorities[AgentBackup.Name].Bundle()
	if err := dial(agent, w.trust, name); err != nil {
		t.Fatalf("the agent of the guest's node: %v", err)
	}
	if err := dial(agent, w.trust, "virt-export-f.default.svc"); err == nil {
		t.Error("the agent accepts another exporter")
	}
	if err := dial(agent, newWorld(t).trust, name); err == nil {
		t.Error("the agent accepts an exporter of another authority")
	}
	for who, own := range map[string]Provider{
		"the agent of another node":           w.issue(t, AgentBackup, AgentBackupSubject("red")),
		"the agent of two nodes":              w.issue(t, AgentBackup, Subject{DNSNames: []string{agentName, "red.virt-handler-backup"}}),
		"a migration with the name":           w.issue(t, AgentMigration, Subject{DNSNames: []string{agentName}}),
		"an agent of another authority":       newWorld(t).issue(t, AgentBackup, AgentBackupSubject("blue")),
		"a client without a certificate":      static{&tls.Certificate{}},
		"an exporter that connects to itself": exporter,
	} {
		if err := dial(own, w.trust, name); err == nil {
			t.Errorf("the exporter accepts %s", who)
		}
	}
	other, err := PullClient(agent, w.trust, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, protocols := range [][]string{nil, {"http/1.1"}} {
		if other.NextProtos = protocols; connect(address, other) == nil {
			t.Errorf("the exporter accepts the protocols %v", protocols)
		}
	}
}
