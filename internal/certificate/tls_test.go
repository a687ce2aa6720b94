// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/exporter/server"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

var curve = elliptic.P256()

// world contains the CAs of all roles and the directory with their certificates.
type world struct {
	authorities map[string]Authority
	trust       Trust
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{authorities: map[string]Authority{}, trust: Trust(t.TempDir())}
	for _, role := range Authorities() {
		w.authorities[role.Name], _, _ = advance(t, Authority{role: role}, time.Now())
		w.publish(t, role)
	}
	return w
}

// publish writes a role's CA certificates to the directory.
func (w *world) publish(t *testing.T, role Role) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(w.trust), role.Name), w.authorities[role.Name].Bundle(),
		0o600); err != nil {
		t.Fatal(err)
	}
}

// static is a Provider of a fixed certificate.
type static struct{ *tls.Certificate }

func (s static) Current() *tls.Certificate { return s.Certificate }

func (w *world) issue(t *testing.T, role Role, subject Subject) static {
	t.Helper()
	c := issue(t, w.authorities[role.Name], subject, time.Now())
	return static{&c}
}

// serve starts a TLS server that sends one byte on each connection.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	plain, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := tls.NewListener(plain, config)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("x"))
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

// connect connects and reads a byte: with TLS 1.3 a client learns only from reading that the server rejected it.
func connect(address string, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return err
	}
	return nil
}

func (w *world) client(t *testing.T, own Provider, node string) *tls.Config {
	t.Helper()
	config, err := AgentClient(own, w.trust, node)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestConnectionsOfVirtAPIToAgents(t *testing.T) {
	w := newWorld(t)
	agent, api := w.issue(t, AgentServing, AgentSubject("blue")), w.issue(t, APIClient, APIClientSubject())
	address := serve(t, AgentServer(agent, w.trust))
	if err := connect(address, w.client(t, api, "blue")); err != nil {
		t.Fatalf("virt-api and the agent: %v", err)
	}
	if err := connect(address, w.client(t, api, "red")); err == nil || !strings.Contains(err.Error(), "red.virt-handler") {
		t.Errorf("the agent of another node is accepted: %v", err)
	}
	// Other certificates that a client could present.
	somebody := w.issue(t, APIClient, Subject{CommonName: "somebody"})
	stranger := newWorld(t).issue(t, APIClient, APIClientSubject())
	for name, own := range map[string]Provider{
		"an agent": w.issue(t, AgentServing, AgentSubject("red")), "the agent itself": agent,
		"virt-api's serving certificate":  w.issue(t, APIServing, APIServingSubject("kubevirt")),
		"another name of the same signer": somebody,
		"virt-api of another authority":   stranger,
		"an agent with virt-api's name":   w.issue(t, AgentServing, Subject{CommonName: agentapi.ClientName, DNSNames: []string{"x"}}),
		"a server with virt-api's name":   w.issue(t, APIServing, Subject{CommonName: agentapi.ClientName, DNSNames: []string{"x"}}),
		"no certificate":                  static{&tls.Certificate{}},
	} {
		if err := connect(address, w.client(t, own, "blue")); err == nil {
			t.Errorf("the agent accepts %s", name)
		}
	}
}

func TestConnectionsBetweenAgents(t *testing.T) {
	w := newWorld(t)
	target, source := w.issue(t, AgentMigration, AgentMigrationSubject("blue")),
		w.issue(t, AgentMigration, AgentMigrationSubject("red"))
	peers := make(chan string, 1)
	config := MigrationServer(target, w.trust)
	each := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := each(hello)
		if err == nil {
			verify := c.VerifyConnection
			c.VerifyConnection = func(state tls.ConnectionState) error {
				node, err := PeerNode(state)
				peers <- node
				return errors.Join(err, verify(state))
			}
		}
		return c, err
	}
	address := serve(t, config)
	client := func(own Provider, node string) *tls.Config {
		t.Helper()
		c, err := MigrationClient(own, w.trust, node)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if err := connect(address, client(source, "blue")); err != nil {
		t.Fatalf("two agents: %v", err)
	}
	if node := <-peers; node != "red" {
		t.Errorf("the source's node is %q", node)
	}
	if err := connect(address, client(source, "green")); err == nil ||
		!strings.Contains(err.Error(), "green.virt-handler-migration") {
		t.Errorf("the agent of another node is accepted: %v", err)
	}
	plain := serve(t, MigrationServer(target, w.trust))
	for name, own := range map[string]Provider{
		"virt-api":                                   w.issue(t, APIClient, APIClientSubject()),
		"an agent's other certificate":               w.issue(t, AgentServing, AgentSubject("red")),
		"virt-api with an agent's name":              w.issue(t, APIClient, AgentMigrationSubject("red")),
		"an agent's other certificate with the name": w.issue(t, AgentServing, AgentMigrationSubject("red")),
		"two nodes":                                  w.issue(t, AgentMigration, Subject{DNSNames: []string{"red.virt-handler-migration", "green.virt-handler-migration"}}),
		"an additional common name":                  w.issue(t, AgentMigration, Subject{CommonName: "x", DNSNames: []string{"red.virt-handler-migration"}}),
		"no node":                                    w.issue(t, AgentMigration, Subject{DNSNames: []string{".virt-handler-migration"}}),
		"an agent of another authority":              newWorld(t).issue(t, AgentMigration, AgentMigrationSubject("red")),
		"no certificate":                             static{&tls.Certificate{}},
	} {
		if err := connect(plain, client(own, "blue")); err == nil {
			t.Errorf("the agent accepts %s", name)
		}
	}
	// Certificates for connections between agents are rejected elsewhere.
	if err := connect(serve(t, AgentServer(w.issue(t, AgentServing, AgentSubject("blue")), w.trust)),
		w.client(t, source, "blue")); err == nil {
		t.Error("an agent is accepted as virt-api")
	}
	if err := connect(serve(t, AgentServer(target, w.trust)),
		w.client(t, w.issue(t, APIClient, APIClientSubject()), "blue")); err == nil {
		t.Error("virt-api accepts the certificate for migrations")
	}
}

func TestVirtAPIRejectsOtherServers(t *testing.T) {
	w := newWorld(t)
	api := w.issue(t, APIClient, APIClientSubject())
	for name, own := range map[string]Provider{
		"virt-api's client certificate":  api,
		"a client with an agent's name":  w.issue(t, APIClient, AgentSubject("blue")),
		"virt-api's serving certificate": w.issue(t, APIServing, AgentSubject("blue")),
		"an agent of another authority":  newWorld(t).issue(t, AgentServing, AgentSubject("blue")),
	} {
		address := serve(t, AgentServer(own, w.trust))
		if err := connect(address, w.client(t, api, "blue")); err == nil {
			t.Errorf("virt-api accepts %s", name)
		}
	}
}

func TestConnectionsFailWithoutCertificates(t *testing.T) {
	w := newWorld(t)
	agent, api := w.issue(t, AgentServing, AgentSubject("blue")), w.issue(t, APIClient, APIClientSubject())
	nothing := Trust(t.TempDir())
	if err := connect(serve(t, AgentServer(static{}, w.trust)), w.client(t, api, "blue")); err == nil {
		t.Error("an agent without a certificate serves")
	}
	if err := connect(serve(t, AgentServer(agent, nothing)), w.client(t, api, "blue")); err == nil {
		t.Error("an agent without CA certificates serves")
	}
	if _, err := AgentClient(static{}, w.trust, "blue"); !errors.Is(err, errNoCertificate) {
		t.Errorf("virt-api without a certificate: %v", err)
	}
	if _, err := AgentClient(api, nothing, "blue"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("virt-api without CA certificates: %v", err)
	}
}

// TestRotationWhileServing rotates the CAs of both sides while the agent serves.
func TestRotationWhileServing(t *testing.T) {
	w := newWorld(t)
	agent, api := w.issue(t, AgentServing, AgentSubject("blue")), w.issue(t, APIClient, APIClientSubject())
	address := serve(t, AgentServer(agent, w.trust))
	after := map[string]Authority{}
	for _, role := range Roles() {
		soon := w.authorities[role.Name].current.certificate.NotAfter.Add(-time.Hour)
		// The CA with a successor, which is published, and later with the successor in its place.
		a := w.authorities[role.Name]
		next, err := newAuthority(role, time.Now(), lifetimes.CADuration)
		if err != nil {
			t.Fatal(err)
		}
		a.next = next
		w.authorities[role.Name] = a
		w.publish(t, role)
		a, changed, _ := advance(t, a, soon)
		if !changed {
			t.Fatal("the successor does not take over")
		}
		after[role.Name] = a
	}
	if err := connect(address, w.client(t, api, "blue")); err != nil {
		t.Errorf("with successors: %v", err)
	}
	w.authorities = after
	newAPI := w.issue(t, APIClient, APIClientSubject())
	if err := connect(address, w.client(t, newAPI, "blue")); err != nil {
		t.Errorf("virt-api renewed first: %v", err)
	}
	*agent.Certificate = *w.issue(t, AgentServing, AgentSubject("blue")).Certificate
	if err := connect(address, w.client(t, api, "blue")); err != nil {
		t.Errorf("the agent renewed: %v", err)
	}
	// Removing a CA takes effect with the next connection.
	for _, role := range Roles() {
		a := after[role.Name]
		a.former = nil
		w.authorities[role.Name] = a
		w.publish(t, role)
	}
	if err := connect(address, w.client(t, api, "blue")); err == nil {
		t.Error("a certificate of a removed CA is accepted")
	}
}

func TestOnlyVirtAPIGetsProfiles(t *testing.T) {
	w := newWorld(t)
	bundle, err := w.trust.Bundle(APIClient)
	if err != nil {
		t.Fatal(err)
	}
	state := func(role Role, subject Subject) *tls.ConnectionState {
		return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{w.issue(t, role, subject).Leaf}}
	}
	if err := VerifyAPI(state(APIClient, APIClientSubject()), bundle, time.Now()); err != nil {
		t.Errorf("virt-api: %v", err)
	}
	for name, tc := range map[string]struct {
		state  *tls.ConnectionState
		bundle []byte
		now    time.Time
	}{
		"no TLS":          {nil, bundle, time.Now()},
		"no certificate":  {&tls.ConnectionState{}, bundle, time.Now()},
		"another role":    {state(AgentServing, AgentSubject("blue")), bundle, time.Now()},
		"another name":    {state(APIClient, Subject{CommonName: "someone"}), bundle, time.Now()},
		"expired":         {state(APIClient, APIClientSubject()), bundle, time.Now().Add(1000 * time.Hour)},
		"no authority":    {state(APIClient, APIClientSubject()), nil, time.Now()},
		"server's bundle": {state(APIClient, APIClientSubject()), w.authorities[AgentServing.Name].Bundle(), time.Now()},
	} {
		if err := VerifyAPI(tc.state, tc.bundle, tc.now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestAPIPeer checks that virt-api accepts only virt-api as its peer.
func TestAPIPeer(t *testing.T) {
	w := newWorld(t)
	api := w.issue(t, APIClient, APIClientSubject())
	server := func(own static) string {
		return serve(t, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*own.Certificate}})
	}
	config, err := APIPeer(api, w.trust, "kubevirt")
	if err != nil {
		t.Fatal(err)
	}
	if err := connect(server(w.issue(t, APIServing, APIServingSubject("kubevirt"))), config); err != nil {
		t.Errorf("virt-api: %v", err)
	}
	if err := connect(server(w.issue(t, AgentServing, AgentSubject("blue"))), config); err == nil {
		t.Error("an agent was taken for virt-api")
	}
}

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
	exporter, agent := w.issue(t, Exporter, Subject{DNSNames: []string{name}}),
		w.issue(t, AgentBackup, AgentBackupSubject("blue"))
	var trusted []byte
	config := server.AgentTLS(func() (*tls.Certificate, error) { return exporter.Certificate, nil },
		func() (*content.Backup, error) {
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
