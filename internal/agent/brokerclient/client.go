// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package brokerclient calls virt-broker and the other programs of its Pod, which have the privileges on the node that
// virt-handler lacks. Errors wrap brokerapi.ErrUnreachable if one does not respond, for example while its Pod is
// restarted: then the caller retries.
package brokerclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// patience is how long the client waits until a request is sent, and for its response: longer than a verb may take.
const patience = brokerapi.VerbTimeout + 10*time.Second

// Client calls the broker, which here is each program of its Pod. Each call has a connection of its own.
type Client struct{ dir string }

// New returns a client for the directory of the programs' sockets.
func New(dir string) *Client { return &Client{dir: dir} }

// errNoDescriptor means that the broker responded without the descriptor that the verb returns.
var errNoDescriptor = errors.New("virt-broker has returned no descriptor: it may be older than virt-handler")

// Ping returns nil if a program responds.
func (c *Client) Ping(ctx context.Context, program brokerapi.Program) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.request(ctx, program, &brokerapi.Request{Verb: brokerapi.Ping}, nil)
	return err
}

// OpenSocket connects to a socket of a Pod that a process of the Pod serves. It waits until the socket exists if wait
// is set.
func (c *Client) OpenSocket(ctx context.Context, pod types.UID, name string, wait bool) (*net.UnixConn, error) {
	arguments := brokerapi.OpenSocketArguments{Name: name, Wait: wait}
	do := c.call
	if wait {
		do = c.callPatiently
	}
	file, err := do(ctx, brokerapi.OpenSocket, pod, arguments, nil)
	if err := needDescriptor(file, err); err != nil {
		return nil, err
	}
	// The connection has a descriptor of its own.
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use the connection that virt-broker made: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, errors.New("virt-broker has returned another kind of connection")
	}
	return unixConn, nil
}

// WatchGuest returns a pidfd of a Pod's QEMU, which becomes readable when the process has exited.
func (c *Client) WatchGuest(ctx context.Context, pod types.UID) (*os.File, error) {
	file, err := c.call(ctx, brokerapi.WatchGuest, pod, nil, nil)
	return file, needDescriptor(file, err)
}

// OpenFile opens a regular file of an image or of the persistent state, or an overlay, for reading, by its path in the
// directory where that is mounted in the Pod.
func (c *Client) OpenFile(ctx context.Context, pod types.UID, mount, name string) (*os.File, error) {
	file, err := c.call(ctx, brokerapi.OpenFile, pod, brokerapi.OpenFileArguments{Mount: mount, Name: name}, nil)
	return file, needDescriptor(file, err)
}

// SyncState returns when a Pod's persistent state is on its disk. tpm is the directory with the TPM's state, or empty.
func (c *Client) SyncState(ctx context.Context, pod types.UID, tpm string) error {
	if tpm != "" {
		if err := c.findTPMState(ctx, pod, tpm); err != nil {
			return fmt.Errorf("the TPM's state is not complete in %s: %w", tpm, err)
		}
	}
	_, err := c.call(ctx, brokerapi.SyncState, pod, nil, nil)
	return err
}

// findTPMState returns an error unless a directory of the persistent state has the state of a TPM.
func (c *Client) findTPMState(ctx context.Context, pod types.UID, dir string) error {
	f, err := c.OpenFile(ctx, pod, launcherpod.StateDir,
		path.Join(strings.TrimPrefix(dir, launcherpod.StateDir+"/"), launcherpod.TPMStateFile))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = errors.New("it is empty")
	}
	return err
}

// GiveHostDir makes QEMU's user the owner of a directory of the node, if the kubelet created it for the Pod.
func (c *Client) GiveHostDir(ctx context.Context, pod types.UID, dir string) error {
	_, err := c.call(ctx, brokerapi.GiveHostDir, pod, brokerapi.GiveHostDirArguments{Directory: dir}, nil)
	return err
}

// NetworkLinks describes the links of a Pod's network namespace.
func (c *Client) NetworkLinks(ctx context.Context, pod types.UID) ([]networkapi.Link, error) {
	result := networkapi.NetworkStateResult{}
	_, err := c.call(ctx, brokerapi.NetworkState, pod, nil, &result)
	return result.Links, err
}

// ChangeNetwork changes a Pod's network step by step.
func (c *Client) ChangeNetwork(ctx context.Context, pod types.UID, steps []networkapi.Step) error {
	_, err := c.call(ctx, brokerapi.ChangeNetwork, pod, networkapi.ChangeNetworkArguments{Steps: steps}, nil)
	return err
}

// OpenRouter opens a socket for router advertisements to a guest, and describes its gateway. It returns no socket if
// the Pod has no IPv6.
func (c *Client) OpenRouter(
	ctx context.Context, pod types.UID, podInterface string,
) (net.PacketConn, networkapi.OpenRouterResult, error) {
	result := networkapi.OpenRouterResult{}
	file, err := c.call(ctx, brokerapi.OpenRouter, pod,
		networkapi.OpenRouterArguments{Bridge: launcherpod.Bridge(podInterface)}, &result)
	if err != nil || file == nil {
		return nil, result, err
	}
	defer func() { _ = file.Close() }()
	conn, err := net.FilePacketConn(file)
	if err != nil {
		return nil, result, fmt.Errorf("use the socket that virt-network-broker opened: %w", err)
	}
	return conn, result, nil
}

// HasStaticCPUPolicy reports whether the kubelet assigns exclusive CPUs to Guaranteed containers.
func (c *Client) HasStaticCPUPolicy(ctx context.Context) (bool, error) {
	result := brokerapi.CPUPolicyResult{}
	_, err := c.call(ctx, brokerapi.CPUPolicy, "", nil, &result)
	return result.Static, err
}

// needDescriptor returns an error unless there is a descriptor.
func needDescriptor(file *os.File, err error) error {
	if err == nil && file == nil {
		return errNoDescriptor
	}
	return err
}

// call makes a request that does not wait.
func (c *Client) call(
	ctx context.Context, verb brokerapi.Verb, pod types.UID, arguments, result any,
) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.callPatiently(ctx, verb, pod, arguments, result)
}

// callPatiently makes a request without a time limit. It decodes the result unless that is nil, and returns the
// descriptor or nil.
func (c *Client) callPatiently(
	ctx context.Context, verb brokerapi.Verb, pod types.UID, arguments, result any,
) (*os.File, error) {
	request := &brokerapi.Request{Verb: verb, Pod: string(pod)}
	if arguments != nil {
		var err error
		if request.Arguments, err = json.Marshal(arguments); err != nil {
			return nil, fmt.Errorf("write a request to virt-broker: %w", err)
		}
	}
	return c.request(ctx, verb.Program(), request, result)
}

// request sends a request to a program, and receives the response.
func (c *Client) request(
	ctx context.Context, program brokerapi.Program, request *brokerapi.Request, result any,
) (*os.File, error) {
	conn, err := c.send(ctx, program, request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	return receive(ctx, conn, result)
}

// send connects to a program and sends a request.
func (c *Client) send(
	ctx context.Context, program brokerapi.Program, request *brokerapi.Request,
) (*net.UnixConn, error) {
	var dialer net.Dialer
	dialed, err := dialer.DialContext(ctx, "unix", program.Socket(c.dir))
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	conn, ok := dialed.(*net.UnixConn)
	if !ok {
		_ = dialed.Close()
		return nil, unreachable(ctx, errors.New("it is no unix socket"))
	}
	if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		_ = conn.Close()
		return nil, unreachable(ctx, err)
	}
	if err := brokerapi.WriteRequest(conn, request); err != nil {
		_ = conn.Close()
		return nil, unreachable(ctx, err)
	}
	return conn, nil
}

// receive receives a response.
func receive(ctx context.Context, conn *net.UnixConn, result any) (*os.File, error) {
	response, file, err := readResponse(conn)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	switch {
	case response.Error != nil:
		err = response.Error
	case result != nil:
		err = json.Unmarshal(response.Result, result)
	}
	if err != nil && file != nil {
		_ = file.Close()
		file = nil
	}
	return file, err
}

// unreachable wraps an error about the connection. The cause must not match the errors that the broker responds with,
// such as fs.ErrNotExist.
func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("request to virt-broker: %w", context.Cause(ctx))
	}
	return fmt.Errorf("%w: %s", brokerapi.ErrUnreachable, err.Error())
}

// readResponse receives a response, and the descriptor that comes with it or nil. The caller closes the descriptor.
func readResponse(from *net.UnixConn) (response *brokerapi.Response, file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			_ = file.Close()
			file = nil
		}
	}()
	header := make([]byte, brokerapi.HeaderBytes)
	read, file, err := receiveWith(from, header)
	if err != nil {
		return nil, file, err
	}
	response, err = brokerapi.ReadResponse(io.MultiReader(bytes.NewReader(header[:read]), from))
	return response, file, err
}

// receiveWith receives some bytes, and the descriptor that comes with them or nil.
func receiveWith(from *net.UnixConn, into []byte) (int, *os.File, error) {
	const oneDescriptor = 4
	control := make([]byte, unix.CmsgSpace(oneDescriptor))
	n, controls, _, _, err := from.ReadMsgUnix(into, control)
	switch {
	case err != nil:
		return 0, nil, err
	case n == 0:
		return 0, nil, io.ErrUnexpectedEOF
	case controls == 0:
		return n, nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	if err != nil {
		return 0, nil, fmt.Errorf("receive a descriptor: %w", err)
	}
	var file *os.File
	for i := range messages {
		// net has the kernel set close-on-exec. There is room for one descriptor, and the kernel closes others.
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if file != nil {
				_ = unix.Close(fd)
				continue
			}
			file = os.NewFile(uintptr(fd), "from virt-broker")
		}
	}
	return n, file, nil
}
