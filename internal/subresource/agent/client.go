// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agent is virt-api's side of the connection to the node agents: it finds the agent of an instance's node, makes sure
// that it is that one by its certificate, and asks. What an agent answers is not trusted further than its own node: bodies are
// bounded, and of a refusal only the code, the reason and a line of text are passed on.
package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/agentapi"
)

const (
	// connectTimeout bounds finding, reaching and greeting an agent.
	connectTimeout = 5 * time.Second
	// dialTimeout bounds the opening of a stream. The agent opens its end in the guest before it answers.
	dialTimeout = 15 * time.Second
	// askTimeout bounds what does not stream. It is less than the server's own limit, so that the caller gets our words.
	askTimeout = 25 * time.Second
	// maxAnswer bounds an answer in JSON. Agents cap what guests report far below it.
	maxAnswer = 1 << 20
	// maxHeader bounds the headers of an answer.
	maxHeader = 16 << 10
)

// Options are what a Client is made of.
type Options struct {
	// Pods lists the agents' Pods.
	Pods client.Reader
	// Namespace is where they are.
	Namespace string
	// Port is the agents'; 0 is agentapi.ConsolePort.
	Port int
	// TLS is the configuration of a connection to the agent of a node: its ServerName is agentapi.ServerName(node), and it
	// authenticates both sides.
	TLS func(node string) (*tls.Config, error)
}

// Client asks node agents.
type Client struct {
	pods finder
	port int
	tls  func(node string) (*tls.Config, error)
	http *http.Client
}

// Target is the instance that a request is about.
type Target struct {
	types.NamespacedName
	// UID is that of the instance for which the caller's rights were checked.
	UID types.UID
	// Node is where it runs.
	Node string
}

// Request is what an agent is asked.
type Request struct {
	Target
	// Verb and Arguments are agentapi's.
	Verb      string
	Arguments []string
	// Query are the verb's parameters.
	Query url.Values
	// Body is sent as JSON, unless it is nil.
	Body any
}

// New makes a Client.
func New(o Options) *Client {
	c := &Client{pods: finder{reader: o.Pods, namespace: o.Namespace}, port: o.Port, tls: o.TLS}
	if c.port == 0 {
		c.port = agentapi.ConsolePort
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext:         c.connect,
			MaxResponseHeaderBytes: maxHeader,
			// People ask seldom. A new connection sees an agent that was replaced and certificates that were renewed.
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

type nodeKey struct{}

// connect reaches the agent of the node that the request is for, and makes sure that it is that one. The host in the request's
// URL is the name in its certificate and not an address.
func (c *Client) connect(ctx context.Context, network, _ string) (net.Conn, error) {
	node, _ := ctx.Value(nodeKey{}).(string)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config, err := c.tls(node)
	if err != nil {
		return nil, err
	}
	if config.ServerName != agentapi.ServerName(node) {
		return nil, fmt.Errorf("the TLS configuration is for %q and not for node %s", config.ServerName, node)
	}
	address, err := c.pods.address(ctx, node)
	if err != nil {
		return nil, err
	}
	return (&tls.Dialer{Config: config}).DialContext(ctx, network, net.JoinHostPort(address, strconv.Itoa(c.port)))
}

// Put asks for a change.
func (c *Client) Put(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := c.do(ctx, http.MethodPut, r)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Get asks for information and decodes it.
func (c *Client) Get(ctx context.Context, r Request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	response, err := c.do(ctx, http.MethodGet, r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return unreachable(ctx, r.Node, err)
	}
	if len(body) > maxAnswer {
		return apierrors.NewInternalError(fmt.Errorf("the agent of node %s answered with more than %d bytes", r.Node, maxAnswer))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("the agent of node %s answered with something else than %T: %w", r.Node, into, err))
	}
	return nil
}

// Open asks for something large. The caller reads it with a limit, while ctx lasts, and closes it.
func (c *Client) Open(ctx context.Context, r Request) (io.ReadCloser, error) {
	response, err := c.do(ctx, http.MethodGet, r)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Dial opens a stream. ctx bounds only the opening.
func (c *Client) Dial(ctx context.Context, r Request) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	address, err := c.url(r)
	if err != nil {
		return nil, err
	}
	conn, response, err := websocket.Dial(context.WithValue(ctx, nodeKey{}, r.Node), address, &websocket.DialOptions{ //nolint:bodyclose // the library closes it
		HTTPClient: c.http, Subprotocols: []string{agentapi.StreamProtocol},
	})
	switch {
	case err == nil:
		return conn, nil
	case response != nil && response.StatusCode != http.StatusSwitchingProtocols && response.Body != nil:
		return nil, refusal(response, r.Node)
	default:
		return nil, unreachable(ctx, r.Node, err)
	}
}

// do sends a request and returns an answer that is none of an error.
func (c *Client) do(ctx context.Context, method string, r Request) (*http.Response, error) {
	address, err := c.url(r)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if r.Body != nil {
		raw, err := json.Marshal(r.Body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(context.WithValue(ctx, nodeKey{}, r.Node), method, address, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, unreachable(ctx, r.Node, err)
	}
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusMultipleChoices {
		defer func() { _ = response.Body.Close() }()
		return nil, refusal(response, r.Node)
	}
	return response, nil
}

// url addresses the agent by the name in its certificate.
func (c *Client) url(r Request) (string, error) {
	// The name comes from the instance's status, and would be part of a URL.
	if problems := validation.IsDNS1123Subdomain(r.Node); len(problems) > 0 {
		return "", apierrors.NewInternalError(fmt.Errorf("the instance is on node %q, which is no name of a node", r.Node))
	}
	query := url.Values{agentapi.UIDParameter: {string(r.UID)}}
	for name, values := range r.Query {
		query[name] = values
	}
	host := net.JoinHostPort(agentapi.ServerName(r.Node), strconv.Itoa(c.port))
	return "https://" + host + agentapi.VMIPath(r.NamespacedName, r.Verb, r.Arguments...) + "?" + query.Encode(), nil
}
