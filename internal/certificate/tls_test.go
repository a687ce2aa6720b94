// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"context"
	"crypto/elliptic"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/agentapi"
)

var curve = elliptic.P256()

// world has the authorities of all roles and the directory in which their bundles are mounted.
type world struct {
	authorities map[string]Authority
	trust       Trust
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{authorities: map[string]Authority{}, trust: Trust(t.TempDir())}
	for _, role := range Roles() {
		w.authorities[role.Name], _, _ = advance(t, Authority{role: role}, time.Now())
		w.publish(t, role)
	}
	return w
}

// publish writes a role's bundle to where it is mounted.
func (w *world) publish(t *testing.T, role Role) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(w.trust), role.Name), w.authorities[role.Name].Bundle(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// held is a certificate that is there.
type held struct{ *tls.Certificate }

func (h held) Current() *tls.Certificate { return h.Certificate }

func (w *world) holder(t *testing.T, role Role, subject Subject) held {
	t.Helper()
	c := issue(t, w.authorities[role.Name], subject, time.Now())
	return held{&c}
}

// serve answers each connection with a byte, over real TLS.
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

// visit connects and reads, because with TLS 1.3 a client learns that it is refused when it reads.
func visit(address string, config *tls.Config) error {
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

func (w *world) client(t *testing.T, own Holder, node string) *tls.Config {
	t.Helper()
	config, err := AgentClient(own, w.trust, node)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestOnlyVirtAPIAndTheRightAgentMeet(t *testing.T) {
	w := newWorld(t)
	agent, api := w.holder(t, AgentServing, AgentSubject("blue")), w.holder(t, APIClient, APIClientSubject())
	address := serve(t, AgentServer(agent, w.trust))
	if err := visit(address, w.client(t, api, "blue")); err != nil {
		t.Fatalf("virt-api and the agent: %v", err)
	}
	if err := visit(address, w.client(t, api, "red")); err == nil || !strings.Contains(err.Error(), "red.virt-handler") {
		t.Errorf("the agent of another node answers: %v", err)
	}
	// What else could be shown to an agent.
	somebody := w.holder(t, APIClient, Subject{CommonName: "somebody"})
	stranger := newWorld(t).holder(t, APIClient, APIClientSubject())
	for name, own := range map[string]Holder{
		"an agent": w.holder(t, AgentServing, AgentSubject("red")), "the agent itself": agent,
		"virt-api's serving certificate":   w.holder(t, APIServing, APIServingSubject("kubevirt")),
		"another name of the same signer":  somebody,
		"virt-api of another authority":    stranger,
		"an agent that calls itself so":    w.holder(t, AgentServing, Subject{CommonName: agentapi.ClientName, DNSNames: []string{"x"}}),
		"a server's that calls itself so":  w.holder(t, APIServing, Subject{CommonName: agentapi.ClientName, DNSNames: []string{"x"}}),
		"nobody (no certificate is shown)": held{&tls.Certificate{}},
	} {
		if err := visit(address, w.client(t, own, "blue")); err == nil {
			t.Errorf("the agent serves %s", name)
		}
	}
}

func TestAgentsMeetEachOtherAndNobodyElse(t *testing.T) {
	w := newWorld(t)
	target, source := w.holder(t, AgentMigration, AgentMigrationSubject("blue")), w.holder(t, AgentMigration, AgentMigrationSubject("red"))
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
	client := func(own Holder, node string) *tls.Config {
		t.Helper()
		c, err := MigrationClient(own, w.trust, node)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if err := visit(address, client(source, "blue")); err != nil {
		t.Fatalf("two agents: %v", err)
	}
	if node := <-peers; node != "red" {
		t.Errorf("the source's agent is taken for that of %q", node)
	}
	if err := visit(address, client(source, "green")); err == nil || !strings.Contains(err.Error(), "green.virt-handler-migration") {
		t.Errorf("the agent of another node answers: %v", err)
	}
	plain := serve(t, MigrationServer(target, w.trust))
	for name, own := range map[string]Holder{
		"virt-api":                         w.holder(t, APIClient, APIClientSubject()),
		"an agent's other certificate":     w.holder(t, AgentServing, AgentSubject("red")),
		"virt-api that calls itself so":    w.holder(t, APIClient, AgentMigrationSubject("red")),
		"the other one that does":          w.holder(t, AgentServing, AgentMigrationSubject("red")),
		"two nodes at once":                w.holder(t, AgentMigration, Subject{DNSNames: []string{"red.virt-handler-migration", "green.virt-handler-migration"}}),
		"one with another name":            w.holder(t, AgentMigration, Subject{CommonName: "x", DNSNames: []string{"red.virt-handler-migration"}}),
		"no node":                          w.holder(t, AgentMigration, Subject{DNSNames: []string{".virt-handler-migration"}}),
		"an agent of another authority":    newWorld(t).holder(t, AgentMigration, AgentMigrationSubject("red")),
		"nobody (no certificate is shown)": held{&tls.Certificate{}},
	} {
		if err := visit(plain, client(own, "blue")); err == nil {
			t.Errorf("the agent takes %s for another agent", name)
		}
	}
	// And the other way round: what agents show each other opens nothing else.
	if err := visit(serve(t, AgentServer(w.holder(t, AgentServing, AgentSubject("blue")), w.trust)), w.client(t, source, "blue")); err == nil {
		t.Error("an agent passes for virt-api")
	}
	if err := visit(serve(t, AgentServer(target, w.trust)), w.client(t, w.holder(t, APIClient, APIClientSubject()), "blue")); err == nil {
		t.Error("virt-api takes the certificate for other agents")
	}
}

func TestVirtAPITakesNobodyElseForAnAgent(t *testing.T) {
	w := newWorld(t)
	api := w.holder(t, APIClient, APIClientSubject())
	for name, own := range map[string]Holder{
		"virt-api's client certificate":  api,
		"a client that has the name":     w.holder(t, APIClient, AgentSubject("blue")),
		"virt-api's serving certificate": w.holder(t, APIServing, AgentSubject("blue")),
		"an agent of another authority":  newWorld(t).holder(t, AgentServing, AgentSubject("blue")),
	} {
		address := serve(t, AgentServer(own, w.trust))
		if err := visit(address, w.client(t, api, "blue")); err == nil {
			t.Errorf("virt-api takes %s for the agent", name)
		}
	}
}

func TestNobodyIsServedBeforeThereAreCertificates(t *testing.T) {
	w := newWorld(t)
	agent, api := w.holder(t, AgentServing, AgentSubject("blue")), w.holder(t, APIClient, APIClientSubject())
	nothing := Trust(t.TempDir())
	if err := visit(serve(t, AgentServer(held{}, w.trust)), w.client(t, api, "blue")); err == nil {
		t.Error("an agent without a certificate serves")
	}
	if err := visit(serve(t, AgentServer(agent, nothing)), w.client(t, api, "blue")); err == nil {
		t.Error("an agent that trusts nobody serves")
	}
	if _, err := AgentClient(held{}, w.trust, "blue"); !errors.Is(err, errNoCertificate) {
		t.Errorf("virt-api without a certificate: %v", err)
	}
	if _, err := AgentClient(api, nothing, "blue"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("virt-api that trusts no agent: %v", err)
	}
}

// TestRotationUnderWay changes the authorities of both sides while the agent serves.
func TestRotationUnderWay(t *testing.T) {
	w := newWorld(t)
	agent, api := w.holder(t, AgentServing, AgentSubject("blue")), w.holder(t, APIClient, APIClientSubject())
	address := serve(t, AgentServer(agent, w.trust))
	after := map[string]Authority{}
	for _, role := range Roles() {
		soon := w.authorities[role.Name].current.certificate.NotAfter.Add(-time.Hour)
		// A successor, and then in its place; its certificate is good from now on only in this test's time.
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
	if err := visit(address, w.client(t, api, "blue")); err != nil {
		t.Errorf("with successors: %v", err)
	}
	w.authorities = after
	newAPI := w.holder(t, APIClient, APIClientSubject())
	if err := visit(address, w.client(t, newAPI, "blue")); err != nil {
		t.Errorf("virt-api renewed first: %v", err)
	}
	*agent.Certificate = *w.holder(t, AgentServing, AgentSubject("blue")).Certificate
	if err := visit(address, w.client(t, api, "blue")); err != nil {
		t.Errorf("the agent renewed: %v", err)
	}
	// An authority that is not trusted any more is not, from the next connection on.
	for _, role := range Roles() {
		a := after[role.Name]
		a.former = nil
		w.authorities[role.Name] = a
		w.publish(t, role)
	}
	if err := visit(address, w.client(t, api, "blue")); err == nil {
		t.Error("a certificate of a former authority is served")
	}
}
