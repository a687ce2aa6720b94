// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package subresources is the client of subresources.kubevirt.io: requests that change an instance or ask about it, and streams
// over websockets. It speaks KubeVirt's wire, so that it works against every server that does.
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
)

// Group is the API's group.
const Group = "subresources.kubevirt.io"

// root is the version that is asked. KubeVirt has served it since 1.0.
const root = "/apis/" + Group + "/v1"

// Resources that have verbs.
const (
	VirtualMachines         = "virtualmachines"
	VirtualMachineInstances = "virtualmachineinstances"
)

// maxRefusal bounds what is read of an answer that refuses a stream.
const maxRefusal = 64 << 10

// Object is what a verb is for.
type Object struct {
	Namespace, Resource, Name string
}

// Kind is how messages call the object's kind.
func (o Object) Kind() string {
	if o.Resource == VirtualMachines {
		return "VM"
	}
	return "VMI"
}

func (o Object) segments(verb ...string) []string {
	return append([]string{root, "namespaces", o.Namespace, o.Resource, o.Name}, verb...)
}

// Client asks for verbs.
type Client struct {
	rest *rest.RESTClient
	// upgrades has connections that may become websockets, which HTTP/2 ones cannot.
	upgrades *http.Client
}

// New makes a client of the cluster that a configuration names.
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
	upgrading.Timeout = 0 // A stream lasts as long as its user likes.
	upgrades, err := rest.HTTPClientFor(upgrading)
	return &Client{rest: requests, upgrades: upgrades}, err
}

// Put asks for a change.
func (c *Client) Put(ctx context.Context, object Object, verb string, body any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.rest.Put().AbsPath(object.segments(verb)...).SetHeader("Content-Type", "application/json").Body(content).Do(ctx).Error()
}

// Get asks for something that is answered with JSON. Parameters may be nil.
func (c *Client) Get(ctx context.Context, object Object, verb string, parameters url.Values, into any) error {
	content, err := c.GetRaw(ctx, object, verb, parameters)
	if err != nil {
		return err
	}
	return decode(content, into)
}

// GetRaw asks for something that is answered with bytes.
func (c *Client) GetRaw(ctx context.Context, object Object, verb string, parameters url.Values) ([]byte, error) {
	request := c.rest.Get().AbsPath(object.segments(verb)...)
	for name, values := range parameters {
		for _, value := range values {
			request = request.Param(name, value)
		}
	}
	return answered(request.Do(ctx))
}

// answered is what a server answered. Raw alone says of a refusal only which code it had, and not what the server said.
func answered(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// GetGroup asks for something of the whole cluster, such as version.
func (c *Client) GetGroup(ctx context.Context, verb string, into any) error {
	content, err := answered(c.rest.Get().AbsPath(root, verb).Do(ctx))
	if err != nil {
		return err
	}
	return decode(content, into)
}

// PutNamespace sends an object to a verb of a namespace, such as expand-vm-spec, and takes the answer.
func (c *Client) PutNamespace(ctx context.Context, namespace, verb string, body, into any) error {
	content, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := answered(c.rest.Put().AbsPath(root, "namespaces", namespace, verb).
		SetHeader("Content-Type", "application/json").Body(content).Do(ctx))
	if err != nil {
		return err
	}
	return decode(answer, into)
}

func decode(content []byte, into any) error {
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("the server's answer is not understood: %w", err)
	}
	return nil
}

// Stream opens a stream. The path may have arguments after the verb. A refusal is a StatusError.
func (c *Client) Stream(ctx context.Context, object Object, path []string, parameters url.Values) (*Stream, error) {
	address := c.rest.Get().AbsPath(object.segments(path...)...).URL()
	address.RawQuery = parameters.Encode()
	// The answer's body is the connection, or what coder/websocket read of it: neither is for the caller to close.
	socket, answer, err := websocket.Dial(ctx, address.String(), &websocket.DialOptions{ //nolint:bodyclose // see above
		HTTPClient: c.upgrades, Subprotocols: []string{ReasonProtocol, Protocol},
	})
	if err != nil {
		return nil, refusal(err, answer, path[0], object)
	}
	if chosen := socket.Subprotocol(); chosen != Protocol && chosen != ReasonProtocol && chosen != "" {
		_ = socket.Close(websocket.StatusProtocolError, "unknown subprotocol")
		return nil, fmt.Errorf("the server chose the stream protocol %q, which is neither %s nor %s", chosen, ReasonProtocol, Protocol)
	}
	return newStream(socket), nil
}

// refusal is the reason for which a websocket was not opened.
func refusal(err error, answer *http.Response, verb string, object Object) error {
	if answer == nil || answer.StatusCode == http.StatusSwitchingProtocols {
		return err
	}
	content, readErr := io.ReadAll(io.LimitReader(answer.Body, maxRefusal))
	if readErr != nil && !errors.Is(readErr, io.ErrUnexpectedEOF) {
		return err
	}
	status := &metav1.Status{}
	if json.Unmarshal(content, status) == nil && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: *status}
	}
	resource := schema.GroupResource{Group: Group, Resource: object.Resource}
	message := strings.TrimSpace(string(content))
	return apierrors.NewGenericServerResponse(answer.StatusCode, verb, resource, object.Name, message, 0, true)
}
