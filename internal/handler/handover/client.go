// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/agentapi"
	"github.com/vireo-project/vireo/internal/handler/httpserver"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// connectTimeout bounds reaching and greeting another agent.
	connectTimeout = 5 * time.Second
	// maxAnswer bounds an answer. The longest has the XML of a domain.
	maxAnswer = 1 << 20
)

// Client is the way to the agents of other nodes.
type Client struct {
	// TLS is the configuration of a connection to the agent of a node: certificate.MigrationClient.
	TLS func(node string) (*tls.Config, error)
	// Port is theirs; 0 is agentapi.MigrationPort.
	Port int
	http *http.Client
}

// NewClient makes a Client.
func NewClient(config func(node string) (*tls.Config, error), port int) *Client {
	c := &Client{TLS: config, Port: port}
	if c.Port == 0 {
		c.Port = agentapi.MigrationPort
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext:         c.dial,
			MaxResponseHeaderBytes: maxHeader,
			DisableCompression:     true,
			// The release is a moment in which the guest stands still: it goes over the connection that was used last.
			MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

type migrationKey struct{}

// dial reaches the target's agent and makes sure that it is that one. The host in the request's URL is the name in its
// certificate, and the address comes from the migration.
func (c *Client) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	m, _ := ctx.Value(migrationKey{}).(Migration)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config, err := c.TLS(m.TargetNode)
	if err != nil {
		return nil, err
	}
	if config.ServerName != agentapi.MigrationName(m.TargetNode) {
		return nil, fmt.Errorf("the TLS configuration is for %q and not for node %s", config.ServerName, m.TargetNode)
	}
	if net.ParseIP(m.Agent) == nil {
		return nil, fmt.Errorf("the migration's target has no address that is one: %q", m.Agent)
	}
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{KeepAlive: httpserver.KeepAlive}}
	return dialer.DialContext(ctx, network, net.JoinHostPort(m.Agent, strconv.Itoa(c.Port)))
}

// Destination asks the target's agent where and how to send the guest.
func (c *Client) Destination(ctx context.Context, m Migration) (*Destination, error) {
	body, err := c.ask(ctx, http.MethodGet, m, destinationRequest)
	if err != nil {
		return nil, err
	}
	d := &Destination{}
	if err := json.Unmarshal(body, d); err != nil {
		return nil, unreachable(m, err)
	}
	return d, nil
}

// Release tells the target's agent that the source's guest will never run again. Without an error, the target's guest runs. It
// returns for how long.
func (c *Client) Release(ctx context.Context, m Migration) (time.Duration, error) {
	body, err := c.ask(ctx, http.MethodPost, m, releaseRequest)
	if err != nil {
		return 0, err
	}
	// That the guest runs is known whatever is in it. An older agent sends nothing.
	var answer Release
	_ = json.Unmarshal(body, &answer)
	return time.Duration(min(answer.RunsForMs, uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond, nil
}

func (c *Client) ask(ctx context.Context, method string, m Migration, what string) ([]byte, error) {
	return c.send(ctx, method, m, what, nil)
}

func (c *Client) send(ctx context.Context, method string, m Migration, what string, content []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.do(ctx, method, m, what, content)
}

// do makes a request that lasts as long as its context.
func (c *Client) do(ctx context.Context, method string, m Migration, what string, content []byte) ([]byte, error) {
	r, err := newRequest(context.WithValue(ctx, migrationKey{}, m), method, m, what, content)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, unreachable(m, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, unreachable(m, err)
	case len(body) > maxAnswer:
		return nil, unreachable(m, fmt.Errorf("its answer is longer than %d bytes", maxAnswer))
	case response.StatusCode/100 != 2:
		return nil, refusal(m, response.StatusCode, body)
	}
	return body, nil
}

func newRequest(ctx context.Context, method string, m Migration, what string, content []byte) (*http.Request, error) {
	where := url.URL{Scheme: "https", Host: agentapi.MigrationName(m.TargetNode), Path: m.path(what)}
	return http.NewRequestWithContext(ctx, method, where.String(), bytes.NewReader(content))
}

// Tunnel connects to the libvirtd of the target's Pod.
func (c *Client) Tunnel(ctx context.Context, m Migration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, migrationKey{}, m), callTimeout)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", "")
	if err != nil {
		return nil, unreachable(m, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	upgraded, err := upgrade(ctx, conn, m)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if !stop() {
		_ = conn.Close()
		return nil, unreachable(m, ctx.Err())
	}
	return upgraded, nil
}

func upgrade(ctx context.Context, conn net.Conn, m Migration) (net.Conn, error) {
	r, err := newRequest(ctx, http.MethodGet, m, tunnelRequest, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", tunnelProtocol)
	if err := r.Write(conn); err != nil {
		return nil, unreachable(m, err)
	}
	reader := bufio.NewReaderSize(conn, maxHeader)
	response, err := http.ReadResponse(reader, r)
	if err != nil {
		return nil, unreachable(m, err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return nil, refusal(m, response.StatusCode, body)
	}
	return &tunneled{Conn: conn, reader: reader}, nil
}

// tunneled reads what came with the answer first.
type tunneled struct {
	net.Conn
	reader *bufio.Reader
}

// Read reads.
func (t *tunneled) Read(p []byte) (int, error) { return t.reader.Read(p) }

// RefusedError is the answer of another agent that does not do what it was asked.
type RefusedError struct {
	// Node is its node, and Code the code of HTTP.
	Node string
	Code int
	// Message is what it says.
	Message string
}

// Error says who refused, and why.
func (r *RefusedError) Error() string {
	return fmt.Sprintf("virt-handler on node %s refused: %s", r.Node, r.Message)
}

func refusal(m Migration, code int, body []byte) error {
	status := metav1.Status{}
	if err := json.Unmarshal(body, &status); err != nil || status.Message == "" {
		status.Message = http.StatusText(code)
	}
	return &RefusedError{Node: m.TargetNode, Code: code, Message: hypervisor.Clean(status.Message)}
}

// isPassing says that it may help to ask again: the agent cannot be reached, is not ready, or has not seen the status yet.
func isPassing(err error) bool {
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return true
	}
	switch refused.Code {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict:
		return false
	default:
		return true
	}
}

func unreachable(m Migration, err error) error {
	return fmt.Errorf("cannot talk to virt-handler on node %s at %s: %w", m.TargetNode, m.Agent, err)
}

// tunnelTo connects to a migration's target, whenever it is called.
func tunnelTo(peers Peers, m Migration) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return peers.Tunnel(ctx, m) }
}
