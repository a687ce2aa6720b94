// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package agentclient is virt-api's client of the node agents. It finds the agent of a VMI's node, verifies by the
// agent's certificate that it belongs to that node, and sends requests to it. An agent is trusted only with its own
// node: response bodies are bounded, and of an error response only the code, the reason and one line of text reach the
// caller.
package agentclient

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/coder/websocket"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

const (
	// connectTimeout bounds finding an agent's Pod, the TCP connection and the TLS handshake.
	connectTimeout = 5 * time.Second
	// replaceTimeout bounds the wait for an agent that is being replaced, which takes seconds.
	replaceTimeout = 15 * time.Second
	// replaceInterval is the time between two attempts to reach it.
	replaceInterval = time.Second
	// dialTimeout bounds the opening of a stream. The agent connects to the guest before it responds.
	dialTimeout = 25 * time.Second
	// requestTimeout bounds a request that does not stream. It is shorter than the server's own timeout, so that the
	// caller gets the error of this package.
	requestTimeout = 25 * time.Second
	// maxResponse bounds a JSON response. The agents' own limits of what guests report are far lower.
	maxResponse = 1 << 20
	// maxHeader bounds the headers of a response.
	maxHeader = 16 << 10
)

// Options configure a Client.
type Options struct {
	// Pods lists the agents' Pods.
	Pods client.Reader
	// Namespace is the namespace of those Pods.
	Namespace string
	// Port is the port on which agents listen. Default: agentapi.ConsolePort.
	Port int
	// ReplaceTimeout bounds the wait for an agent that is being replaced. Default: 15 seconds.
	ReplaceTimeout time.Duration
	// TLS returns the configuration of a connection to the agent of a node: its ServerName is
	// agentapi.ServerName(node), and both sides authenticate.
	TLS func(node string) (*tls.Config, error)
}

// Client sends requests to node agents.
type Client struct {
	pods    finder
	port    int
	replace time.Duration
	tls     func(node string) (*tls.Config, error)
	http    *http.Client
}

// VMIRef refers to the VMI of a request.
type VMIRef struct {
	types.NamespacedName
	// UID is the UID of the VMI that virt-api checked. The agent rejects the request if its VMI has a different one.
	UID types.UID
	// Node is the node that the VMI runs on.
	Node string
}

// Request is a request to an agent.
type Request struct {
	VMIRef
	// Verb and Arguments are defined in agentapi.
	Verb      string
	Arguments []string
	// Query contains the verb's parameters.
	Query url.Values
	// Body is sent as JSON; nil sends none.
	Body any
	// Warn is called with a warning of the response to Get; nil ignores warnings.
	Warn func(text string)
}

// New returns a Client.
func New(o Options) *Client {
	c := &Client{
		pods: finder{reader: o.Pods, namespace: o.Namespace}, tls: o.TLS,
		port: cmp.Or(o.Port, agentapi.ConsolePort), replace: cmp.Or(o.ReplaceTimeout, replaceTimeout),
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialTLSContext:         c.connect,
			MaxResponseHeaderBytes: maxHeader,
			// Requests are rare. A new connection for each finds a replaced agent and uses renewed certificates.
			DisableKeepAlives:  true,
			DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

type nodeKey struct{}

// connect dials the agent of the request's node and verifies its certificate. The host in the request's URL is the name
// in that certificate, not an address. An agent that is being replaced is waited for: nothing of the request has been
// sent yet.
func (c *Client) connect(ctx context.Context, network, _ string) (net.Conn, error) {
	node, _ := ctx.Value(nodeKey{}).(string)
	var conn net.Conn
	var err error
	// Why the wait ended says less than the last attempt.
	_ = wait.PollUntilContextTimeout(ctx, replaceInterval, c.replace, true, func(context.Context) (bool, error) {
		var address string
		conn, address, err = c.connectOnce(ctx, network, node)
		return !c.isReplaced(ctx, node, address, err), nil
	})
	return conn, err
}

// isReplaced reports whether an attempt to connect has failed because the agent is being replaced: there is none, it
// does not listen, or its address could not be reached and the agent has another one now.
func (c *Client) isReplaced(ctx context.Context, node, address string, err error) bool {
	var noAgent *noAgentError
	if errors.As(err, &noAgent) || errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	if dial := (*net.OpError)(nil); !errors.As(err, &dial) || dial.Op != "dial" {
		return false
	}
	now, err := c.pods.address(ctx, node)
	return errors.As(err, &noAgent) || err == nil && now != address
}

// connectOnce makes one attempt to connect. It also returns the address, if the agent has one.
func (c *Client) connectOnce(ctx context.Context, network, node string) (conn net.Conn, address string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	config, err := c.tls(node)
	if err != nil {
		return nil, "", err
	}
	if config.ServerName != agentapi.ServerName(node) {
		return nil, "", fmt.Errorf("the TLS configuration is for %q and not for node %s", config.ServerName, node)
	}
	if address, err = c.pods.address(ctx, node); err != nil {
		return nil, "", err
	}
	conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, network, net.JoinHostPort(address, strconv.Itoa(c.port)))
	return conn, address, err
}

// Put sends a request that changes something and has no response body.
func (c *Client) Put(ctx context.Context, r Request) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.do(ctx, http.MethodPut, r)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Get sends a request and decodes its JSON response into an object.
func (c *Client) Get(ctx context.Context, r Request, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := c.do(ctx, http.MethodGet, r)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return unreachable(ctx, r.Node, err)
	}
	if len(body) > maxResponse {
		return apierrors.NewInternalError(fmt.Errorf("the agent of node %s responded with more than %d bytes",
			r.Node, maxResponse))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("the agent of node %s returned something other than %T: %w",
			r.Node, into, err))
	}
	if text := response.Header.Get(agentapi.WarningHeader); text != "" && r.Warn != nil {
		if warning, _, err := utilnet.ParseWarningHeader(text); err == nil {
			r.Warn(singleLine(warning.Text))
		}
	}
	return nil
}

// Open sends a request with a large response and returns its body. The caller limits how much it reads, and closes it.
// Reading fails when ctx ends.
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
		return nil, responseError(response, r.Node)
	default:
		return nil, unreachable(ctx, r.Node, err)
	}
}

// do sends a request. A response with any code but 2xx is returned as an error.
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
		return nil, responseError(response, r.Node)
	}
	return response, nil
}

// url returns the request's URL, whose host is the name in the agent's certificate.
func (c *Client) url(r Request) (string, error) {
	// The name comes from the VMI's status and becomes part of the URL.
	if problems := validation.IsDNS1123Subdomain(r.Node); len(problems) > 0 {
		return "", apierrors.NewInternalError(fmt.Errorf("the instance is on node %q, which is not a valid node name",
			r.Node))
	}
	query := url.Values{agentapi.UIDParameter: {string(r.UID)}}
	maps.Copy(query, r.Query)
	host := net.JoinHostPort(agentapi.ServerName(r.Node), strconv.Itoa(c.port))
	return "https://" + host + agentapi.VMIPath(r.NamespacedName, r.Verb, r.Arguments...) + "?" + query.Encode(), nil
}

const (
	// maxErrorBody bounds how much of an error response is read, in bytes.
	maxErrorBody = 16 << 10
	// maxMessage bounds the message that reaches the caller, in bytes. KubeVirt's websocket client reads 1024 bytes of
	// a Status.
	maxMessage = 512
	// maxRetryAfter bounds the delay that an agent can request from a caller, in seconds.
	maxRetryAfter = 60
)

// forwardedCodes are the response codes of an agent that concern the caller's request, with their reasons. Any other
// code, such as 401 and 403, concerns virt-api's own access to the agent, and the caller gets an internal error.
var forwardedCodes = map[int]metav1.StatusReason{
	http.StatusBadRequest:          metav1.StatusReasonBadRequest,
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusConflict:            metav1.StatusReasonConflict,
	http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusNotImplemented:      NotImplemented,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
	http.StatusGatewayTimeout:      metav1.StatusReasonTimeout,
}

// NotImplemented is the reason of a Status with code 501, for which Kubernetes defines none.
const NotImplemented metav1.StatusReason = "NotImplemented"

// responseError converts an agent's error response to an error. The Status is built anew, because clients act on
// details of a Status, and the agent is not trusted with those.
func responseError(response *http.Response, node string) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // a partial body is good enough for a message
	var status metav1.Status
	message := ""
	if err := json.Unmarshal(body, &status); err == nil && status.Kind == "Status" {
		message = singleLine(status.Message)
	}
	code := response.StatusCode
	reason, known := forwardedCodes[code]
	if !known {
		code, reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		message = strings.TrimSpace(fmt.Sprintf("the agent of node %s refused virt-api with code %d. %s", node,
			response.StatusCode, message))
	}
	if message == "" {
		message = fmt.Sprintf("the agent of node %s responded %d %s", node, code, http.StatusText(code))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message, Details: retryDetails(response),
	}}
}

// retryDetails returns the delay of the response's Retry-After header, or nil if it has none.
func retryDetails(response *http.Response) *metav1.StatusDetails {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return nil
	}
	return &metav1.StatusDetails{RetryAfterSeconds: int32(min(seconds, maxRetryAfter))}
}

// unreachable converts the error of a request that could not be sent, or whose response could not be read, to a Status.
func unreachable(ctx context.Context, node string, err error) error {
	var noAgent *noAgentError
	var urlError *url.Error
	switch {
	case errors.As(err, &noAgent):
		return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("node %s has no running agent: %s", node, noAgent.reason))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return newError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			fmt.Sprintf("the agent of node %s did not respond in time", node))
	case errors.As(err, &urlError):
		err = urlError.Err // leaves out the URL
	}
	return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the agent of node %s cannot be reached: %s", node, singleLine(err.Error())))
}

func newError(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

// singleLine removes line breaks and control characters from a text, and truncates it to maxMessage bytes.
func singleLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == unicode.ReplacementChar || !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

// The label of the agents' Pods (KubeVirt's), and the field selector of a Pod's node.
const (
	appLabel     = "kubevirt.io"
	appHandler   = "virt-handler"
	nodeSelector = "spec.nodeName"
)

// finder finds the address of a node's agent.
type finder struct {
	reader    client.Reader
	namespace string
}

// noAgentError is returned if a node has no running agent.
type noAgentError struct{ reason string }

// Error implements error.
func (e *noAgentError) Error() string { return e.reason }

// address returns the IP address of a node's agent. While an agent is being replaced there may be two Pods: the ready
// one is preferred, then the new one. An old one serves requests while it waits for migrations.
func (f finder) address(ctx context.Context, node string) (string, error) {
	pods := &corev1.PodList{}
	err := f.reader.List(ctx, pods, client.InNamespace(f.namespace),
		client.MatchingLabels{appLabel: appHandler}, client.MatchingFields{nodeSelector: node})
	if err != nil {
		return "", fmt.Errorf("cannot list its Pods: %w", err)
	}
	var best, old *corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		switch {
		case pod.Status.PodIP == "" || pod.Status.Phase != corev1.PodRunning:
		case pod.DeletionTimestamp != nil:
			old = pod
		case podstate.Ready(pod):
			return pod.Status.PodIP, nil
		default:
			best = pod
		}
	}
	switch {
	case best != nil:
		return best.Status.PodIP, nil
	case old != nil:
		return old.Status.PodIP, nil
	case len(pods.Items) > 0:
		return "", &noAgentError{fmt.Sprintf("Pod %s does not run", pods.Items[0].Name)}
	default:
		return "", &noAgentError{"there is no virt-handler Pod"}
	}
}
