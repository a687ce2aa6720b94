// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package portforward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strconv"

	"github.com/coder/websocket"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Dialer opens streams to a guest's ports.
type Dialer struct {
	API    *subresources.Client
	Target subresources.Object
	// VSOCK connects to the guest's VSOCK ports, PlainVSOCK without TLS.
	VSOCK, PlainVSOCK bool
}

// Dial opens a stream to a port.
func (d *Dialer) Dial(ctx context.Context, protocol string, number int) (*subresources.Stream, error) {
	if d.VSOCK {
		instance := d.Target
		instance.Resource = subresources.VirtualMachineInstances // VMs do not have this subresource.
		parameters := url.Values{"port": {strconv.Itoa(number)}, "tls": {strconv.FormatBool(!d.PlainVSOCK)}}
		return d.API.Stream(ctx, instance, []string{"vsock"}, parameters)
	}
	return d.API.Stream(ctx, d.Target, []string{"portforward", strconv.Itoa(number), protocol}, nil)
}

// stdio connects a port with the program's input and output.
func stdio(ctx context.Context, dial *Dialer, protocol string, number int, streams genericiooptions.IOStreams) error {
	stream, err := dial.Dial(ctx, protocol, number)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = stream.Close() })
	defer stop()
	return ignoreClosed(stream.Join(streams.In, streams.Out))
}

// ignoreClosed returns nil for the regular end of a connection.
func ignoreClosed(err error) error {
	var closed *subresources.ClosedError
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.As(err, &closed) && closed.Code == websocket.StatusNormalClosure {
		return nil
	}
	return err
}
