// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package subresources is a client of subresources.kubevirt.io: requests that change or query a VM or an instance, and
// streams over websockets. It works with every server of KubeVirt's API.
package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Group is the API group.
const Group = v1.SubresourceGroupName

// root is the path of the API version in use. KubeVirt has served it since 1.0.
const root = "/apis/" + Group + "/v1"

// Resources that have subresources.
const (
	VirtualMachines         = "virtualmachines"
	VirtualMachineInstances = "virtualmachineinstances"
)

// maxErrorBody is how many bytes are read of a response that rejects a stream.
const maxErrorBody = 64 << 10

// Object names the VM or instance of a request.
type Object struct {
	Namespace, Resource, Name string
}

// Kind returns the object's kind for messages: VM or VMI.
func (o Object) Kind() string {
	if o.Resource == VirtualMachines {
		return "VM"
	}
	return "VMI"
}

func (o Object) segments(verb ...string) []string {
	return append([]string{root, "namespaces", o.Namespace, o.Resource, o.Name}, verb...)
}

// Client sends requests to subresources.
type Client struct {
	rest *rest.RESTClient
	// upgrades uses HTTP/1.1, because HTTP/2 connections cannot become websockets.
	upgrades *http.Client
}

// New returns a client of the configuration's cluster.
func New(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion = &schema.GroupVersion{}
	config.NegotiatedSerializer = clientgoscheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = "application/json", ""
	requests, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, err
	}
	upgrading := rest.CopyConfig(config)
	upgrading.NextProtos = []string{"http/1.1"}
	upgrading.Timeout = 0 // Streams have no time limit.
	upgrades, err := rest.HTTPClientFor(upgrading)
	return &Client{rest: requests, upgrades: upgrades}, err
}

// Put sends a request that changes the object.
func (c *Client) Put(ctx context.Context, object Object, verb string, body any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.rest.Put().AbsPath(object.segments(verb)...).SetHeader("Content-Type",
		"application/json").Body(content).Do(ctx).Error()
}

// Get decodes a subresource's JSON. Parameters may be nil.
func (c *Client) Get(ctx context.Context, object Object, verb string, parameters url.Values, into any) error {
	content, err := c.GetRaw(ctx, object, verb, parameters)
	if err != nil {
		return err
	}
	return decode(content, into)
}

// GetRaw returns the content of a subresource.
func (c *Client) GetRaw(ctx context.Context, object Object, verb string, parameters url.Values) ([]byte, error) {
	request := c.rest.Get().AbsPath(object.segments(verb)...)
	for name, values := range parameters {
		for _, value := range values {
			request = request.Param(name, value)
		}
	}
	return content(request.Do(ctx))
}

// content returns the content of a response. It is used instead of Raw, whose errors lack the server's message.
func content(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// GetGroup decodes the JSON of a request for the whole cluster, such as version.
func (c *Client) GetGroup(ctx context.Context, verb string, into any) error {
	response, err := content(c.rest.Get().AbsPath(root, verb).Do(ctx))
	if err != nil {
		return err
	}
	return decode(response, into)
}

// GetGroupWith is GetGroup with a request body, as for dump-cluster-profiler. Nothing is decoded if into is nil or
// there is no content.
func (c *Client) GetGroupWith(ctx context.Context, verb string, body, into any) error {
	request := c.rest.Get().AbsPath(root, verb)
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return err
		}
		request = request.SetHeader("Content-Type", "application/json").Body(raw)
	}
	response, err := content(request.Do(ctx))
	if err != nil || into == nil || len(response) == 0 {
		return err
	}
	return decode(response, into)
}

// PutNamespace sends an object to a subresource of a namespace, such as expand-vm-spec, and decodes the response.
func (c *Client) PutNamespace(ctx context.Context, namespace, verb string, body, into any) error {
	request, err := json.Marshal(body)
	if err != nil {
		return err
	}
	response, err := content(c.rest.Put().AbsPath(root, "namespaces", namespace, verb).
		SetHeader("Content-Type", "application/json").Body(request).Do(ctx))
	if err != nil {
		return err
	}
	return decode(response, into)
}

func decode(content []byte, into any) error {
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("the server's response cannot be decoded: %w", err)
	}
	return nil
}

// Stream opens a stream. The path is the subresource and its arguments. If the server rejects the request, the error is
// a StatusError.
func (c *Client) Stream(ctx context.Context, object Object, path []string, parameters url.Values) (*Stream, error) {
	address := c.rest.Get().AbsPath(object.segments(path...)...).URL()
	address.RawQuery = parameters.Encode()
	// The caller need not close the response's body: it is the connection, or the part that coder/websocket has read.
	socket, response, err := websocket.Dial(ctx, address.String(), &websocket.DialOptions{ //nolint:bodyclose // see above
		HTTPClient: c.upgrades, Subprotocols: []string{ReasonProtocol, Protocol},
	})
	if err != nil {
		return nil, statusError(err, response, path[0], object)
	}
	if chosen := socket.Subprotocol(); chosen != Protocol && chosen != ReasonProtocol && chosen != "" {
		_ = socket.Close(websocket.StatusProtocolError, "unknown subprotocol")
		return nil, fmt.Errorf("the server chose the stream protocol %q, which is neither %s nor %s",
			chosen, ReasonProtocol, Protocol)
	}
	return newStream(socket), nil
}

// statusError returns the Status in the response with which the server rejected a websocket, or err if there is none.
func statusError(err error, response *http.Response, verb string, object Object) error {
	if response == nil || response.StatusCode == http.StatusSwitchingProtocols {
		return err
	}
	body, readErr := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if readErr != nil && !errors.Is(readErr, io.ErrUnexpectedEOF) {
		return err
	}
	status := &metav1.Status{}
	if json.Unmarshal(body, status) == nil && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: *status}
	}
	resource := schema.GroupResource{Group: Group, Resource: object.Resource}
	message := strings.TrimSpace(string(body))
	return apierrors.NewGenericServerResponse(response.StatusCode, verb, resource, object.Name, message, 0, true)
}
