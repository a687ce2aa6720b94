// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/pki"
	"github.com/vireo-project/vireo/hack/cluster/internal/process"
	"github.com/vireo-project/vireo/hack/cluster/internal/record"
)

// probeTimeout is how long a component may take to start. An API server that
// starts for the first time on a busy machine takes the longest.
const probeTimeout = 2 * time.Minute

func (m *Machine) alive(component string) bool {
	return process.Alive(m.record.Process(component))
}

// ensure starts a component that does not run, and returns when it works.
func (m *Machine) ensure(ctx context.Context, c config.Component) error {
	if !m.alive(c.Name) {
		if err := m.start(c); err != nil {
			return err
		}
	}
	return m.wait(ctx, c)
}

func (m *Machine) start(c config.Component) error {
	command := c.Command
	if c.Node != "" && c.Name != config.Holder(c.Node) {
		command = process.Enter(m.holder(c.Node).PID, command...)
	}
	started, err := process.Start(process.Spec{
		Command: command, Log: m.layout.Log(c.Name), JoinFiles: m.tree.JoinFiles(c.Cgroup), Path: c.Path,
	})
	if err != nil {
		return err
	}
	// If this process is killed here, the component is still found by its control group.
	return m.record.Change(func(r *record.Record) { r.Processes[c.Name] = started })
}

// wait returns when the component's probe succeeds. It fails as soon as the
// component has ended.
func (m *Machine) wait(ctx context.Context, c config.Component) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for {
		err := m.probe(ctx, c)
		if err == nil {
			return nil
		}
		if !m.alive(c.Name) {
			return fmt.Errorf("%s has ended, its log is %s", c.Name, m.layout.Log(c.Name))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready, its log is %s: %w", c.Name, m.layout.Log(c.Name), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (m *Machine) probe(ctx context.Context, c config.Component) error {
	switch {
	case c.Probe.URL != "":
		return m.get(ctx, c.Probe)
	case c.Probe.Socket != "":
		// In a node, the path is below the root of the node's holder. It does not
		// suffice that the file exists: a killed program leaves its socket behind.
		path := c.Probe.Socket
		if c.Node != "" {
			path = fmt.Sprintf("/proc/%d/root%s", m.holder(c.Node).PID, path)
		}
		connection, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return fmt.Errorf("connect to its socket: %w", err)
		}
		return connection.Close()
	default:
		if !m.alive(c.Name) {
			return errors.New("it does not run")
		}
		return nil
	}
}

// get requests a URL. It accepts self-signed certificates, because the response
// only shows whether the component works.
func (m *Machine) get(ctx context.Context, p config.Probe) error {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: p.Certificate == ""}
	if p.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(m.layout.PKI(p.Certificate+".crt"), m.layout.PKI(p.Certificate+".key"))
		if err != nil {
			return fmt.Errorf("load the certificate of a probe: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
		settings.RootCAs = x509.NewCertPool()
		for _, authority := range []string{pki.Cluster, pki.Etcd} {
			data, err := os.ReadFile(m.layout.PKI(authority + ".crt"))
			if err != nil {
				return fmt.Errorf("load an authority: %w", err)
			}
			settings.RootCAs.AppendCertsFromPEM(data)
		}
	}
	transport := &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, http.NoBody)
	if err != nil {
		return fmt.Errorf("make the request of a probe: %w", err)
	}
	response, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := response.Body.Close(); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("probe: %s returns %s", p.URL, response.Status)
	}
	return nil
}

// Stop stops a component and leaves everything else running, for tests of
// failures.
func (m *Machine) Stop(ctx context.Context, component string, signal syscall.Signal) error {
	running := m.record.Process(component)
	if running.PID == 0 {
		return fmt.Errorf("there is no component %q: see the names that status prints", component)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return process.Stop(ctx, running, signal)
}
