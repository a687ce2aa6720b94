// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

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

	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// connectTimeout bounds the connection to another agent and the TLS handshake.
	connectTimeout = 5 * time.Second
	// maxResponse bounds a response's body. The longest has the XML of a domain.
	maxResponse = 1 << 20
)

// Client sends requests to the agents of other nodes.
type Client struct {
	// TLS returns the configuration of a connection to a node's agent: certificate.MigrationClient.
	TLS func(node string) (*tls.Config, error)
	// Port is the port of the agents; 0 is agentapi.MigrationPort.
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
			// The guest is paused during the release: it reuses the connection of the first request.
			MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

type attemptKey struct{}

// dial connects to the target's agent and authenticates it. The host in the request's URL is the name in its
// certificate; the address comes from the attempt.
func (c *Client) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	a, _ := ctx.Value(attemptKey{}).(Attempt)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config, err := c.TLS(a.TargetNode)
	if err != nil {
		return nil, err
	}
	if config.ServerName != agentapi.MigrationName(a.TargetNode) {
		return nil, fmt.Errorf("the TLS configuration is for %q and not for node %s", config.ServerName, a.TargetNode)
	}
	if net.ParseIP(a.Agent) == nil {
		return nil, fmt.Errorf("the address of the migration's target is invalid: %q", a.Agent)
	}
	dialer := tls.Dialer{Config: config, NetDialer: &net.Dialer{KeepAlive: httpserver.KeepAlive}}
	return dialer.DialContext(ctx, network, net.JoinHostPort(a.Agent, strconv.Itoa(c.Port)))
}

// Destination returns where and how to send the guest.
func (c *Client) Destination(ctx context.Context, a Attempt) (*Destination, error) {
	body, err := c.send(ctx, http.MethodGet, a, destinationRequest, nil)
	if err != nil {
		return nil, err
	}
	d := &Destination{}
	if err := json.Unmarshal(body, d); err != nil {
		return nil, unreachable(a, err)
	}
	return d, nil
}

// Release releases the guest: the caller guarantees that the source's guest will never run again. Without an error, the
// target's guest runs. It returns for how long it has run.
func (c *Client) Release(ctx context.Context, a Attempt) (time.Duration, error) {
	body, err := c.send(ctx, http.MethodPost, a, releaseRequest, nil)
	if err != nil {
		return 0, err
	}
	// The guest runs even if the body is invalid. An older agent sends none.
	var release Release
	_ = json.Unmarshal(body, &release)
	return time.Duration(min(release.RunsForMs, uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond, nil
}

// send makes a request that is limited by callTimeout, and returns the body of the response.
func (c *Client) send(ctx context.Context, method string, a Attempt, what string, content []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.do(ctx, method, a, what, content)
}

// do makes a request that is limited only by its context.
func (c *Client) do(ctx context.Context, method string, a Attempt, what string, content []byte) ([]byte, error) {
	r, err := newRequest(context.WithValue(ctx, attemptKey{}, a), method, a, what, content)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return nil, unreachable(a, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return nil, unreachable(a, err)
	case len(body) > maxResponse:
		return nil, unreachable(a, fmt.Errorf("its response is longer than %d bytes", maxResponse))
	case response.StatusCode/100 != 2:
		return nil, refusal(a, response.StatusCode, body)
	}
	return body, nil
}

func newRequest(ctx context.Context, method string, a Attempt, what string, content []byte) (*http.Request, error) {
	target := url.URL{Scheme: "https", Host: agentapi.MigrationName(a.TargetNode), Path: a.path(what)}
	return http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(content))
}

// Tunnel connects to the libvirtd of the target's Pod.
func (c *Client) Tunnel(ctx context.Context, a Attempt) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, attemptKey{}, a), callTimeout)
	defer cancel()
	conn, err := c.dial(ctx, "tcp", "")
	if err != nil {
		return nil, unreachable(a, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	upgraded, err := upgrade(ctx, conn, a)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if !stop() {
		_ = conn.Close()
		return nil, unreachable(a, ctx.Err())
	}
	return upgraded, nil
}

func upgrade(ctx context.Context, conn net.Conn, a Attempt) (net.Conn, error) {
	r, err := newRequest(ctx, http.MethodGet, a, tunnelRequest, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", tunnelProtocol)
	if err := r.Write(conn); err != nil {
		return nil, unreachable(a, err)
	}
	reader := bufio.NewReaderSize(conn, maxHeader)
	response, err := http.ReadResponse(reader, r)
	if err != nil {
		return nil, unreachable(a, err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(io.LimitReader(response.Body, maxResponse))
		return nil, refusal(a, response.StatusCode, body)
	}
	return &tunnelConn{Conn: conn, reader: reader}, nil
}

// tunnelConn first reads what was buffered with the response.
type tunnelConn struct {
	net.Conn
	reader *bufio.Reader
}

// Read implements net.Conn.
func (t *tunnelConn) Read(p []byte) (int, error) { return t.reader.Read(p) }

// RefusedError is the error that another agent returned for a request.
type RefusedError struct {
	// Node is the agent's node, and Code the HTTP status code.
	Node string
	Code int
	// Message is the agent's message.
	Message string
}

// Error names the agent and its reason.
func (r *RefusedError) Error() string {
	return fmt.Sprintf("virt-handler on node %s refused: %s", r.Node, r.Message)
}

func refusal(a Attempt, code int, body []byte) error {
	status := metav1.Status{}
	if err := json.Unmarshal(body, &status); err != nil || status.Message == "" {
		status.Message = http.StatusText(code)
	}
	return &RefusedError{Node: a.TargetNode, Code: code, Message: hypervisor.Clean(status.Message)}
}

// IsTemporary reports whether a request that failed may succeed later: the agent is unreachable, is not ready, or has
// not read the VMI's status yet.
func IsTemporary(err error) bool {
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

func unreachable(a Attempt, err error) error {
	return fmt.Errorf("cannot reach virt-handler on node %s at %s: %w", a.TargetNode, a.Agent, err)
}
