// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package console implements the command console: a terminal at a guest's serial port.
package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// Command returns the command console.
func Command(c *cli.CLI) *cobra.Command {
	var minutes int
	cmd := &cobra.Command{
		Use:   "console (VMI)",
		Short: "Connect to a console of a virtual machine instance.",
		Long: "Connect to the serial console of a virtual machine instance. While the instance starts, the command waits. Ctrl+] quits.\n" +
			"A console has one client: a new client disconnects the former one.",
		Example: c.Examples(`
# Connect to the console on VirtualMachineInstance 'myvmi':
virtctl console myvmi

# Wait one minute for it to run (default 5 minutes):
virtctl console --timeout=1 myvmi

# Print the earlier output of the guest, without connecting:
kubectl logs -l vm.kubevirt.io/name=myvmi -c compute`),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			objects, err := c.Objects()
			if err != nil {
				return err
			}
			s := &session{
				cli:  c,
				vmi:  vmi,
				dial: Dialer{CLI: c, API: api, Objects: objects, VMI: vmi, Timeout: time.Duration(minutes) * time.Minute},
			}
			return s.run(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&minutes, "timeout", 5,
		"The number of minutes to wait for the virtual machine instance to be ready.")
	return cmd
}

// retryInterval is the time between attempts while the instance does not run. KubeVirt's value.
const retryInterval = time.Second

// Dialer opens an instance's console and waits until the instance runs.
type Dialer struct {
	CLI     *cli.CLI
	API     *subresources.Client
	Objects client.Client
	VMI     subresources.Object
	// Timeout is how long to wait. 0 means a single attempt.
	Timeout time.Duration
}

// Dial opens the console. While it waits, it calls report with each new reason.
func (d Dialer) Dial(ctx context.Context, report func(string)) (*subresources.Stream, error) {
	deadline := time.Now().Add(d.Timeout)
	reported := ""
	for {
		stream, err := d.API.Stream(ctx, d.VMI, []string{"console"}, nil)
		if err == nil || ctx.Err() != nil {
			return stream, errors.Join(err, ctx.Err())
		}
		if final := d.permanent(ctx, err); final != nil {
			return nil, final
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf(
				"timeout trying to connect to the virtual machine instance: %w\nSee why it does not run: %s explain %s", err,
				d.CLI.Program, d.VMI.Name)
		}
		if reason := cli.Plain(err.Error()); reason != reported {
			reported = reason
			report(fmt.Sprintf("Waiting for %s: %s", d.VMI.Name, reason))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(retryInterval):
		}
	}
}

// permanent returns an error if the console cannot be opened even later, and nil otherwise.
func (d Dialer) permanent(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound:
		return d.missing(ctx, err)
	case http.StatusBadRequest:
		if strings.Contains(strings.ToLower(err.Error()), "serial") {
			return err // The instance has no serial console.
		}
		return nil
	case http.StatusConflict, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, http.StatusTooManyRequests:
		return nil
	default:
		return err
	}
}

// missing returns an error unless the instance has a VM that is about to start it.
func (d Dialer) missing(ctx context.Context, notFound error) error {
	vm := &v1.VirtualMachine{}
	key := client.ObjectKey{Namespace: d.VMI.Namespace, Name: d.VMI.Name}
	if err := d.Objects.Get(ctx, key, vm); err != nil {
		return notFound
	}
	if vm.Status.PrintableStatus == v1.VirtualMachineStatusStopped {
		return fmt.Errorf("VM %s is stopped. Start it with: %s start %s", vm.Name, d.CLI.Program, vm.Name)
	}
	return nil
}

const (
	// escape quits: Ctrl+], as in telnet and KubeVirt. Ctrl+5 sends the same byte.
	escape = 0x1d
	// interrupt is Ctrl+C. It is sent to the guest, or quits while there is no connection.
	interrupt = 0x03
	// readSize is the size of one read of the keyboard, and queueLength how many of them may wait for a slow guest.
	readSize, queueLength = 1024, 1024
)

// errEscaped reports that the user quit.
var errEscaped = errors.New("the escape sequence was typed")

// session connects a terminal with a console. It reconnects when virt-api shuts down.
type session struct {
	cli  *cli.CLI
	vmi  subresources.Object
	dial Dialer
}

func (s *session) run(ctx context.Context) error {
	stream, err := s.dial.Dial(ctx, s.printer("\n"))
	if ctx.Err() != nil {
		return nil // Ctrl+C while waiting is not an error.
	}
	if err != nil {
		return err
	}
	restore, err := s.cli.MakeRaw()
	if err != nil {
		return err
	}
	defer restore()
	s.printer("\r\n")(fmt.Sprintf("Successfully connected to %s console. Press Ctrl+] or Ctrl+5 to exit console.",
		s.vmi.Name))
	keys := readKeys(s.cli.In)
	for {
		err := s.serve(ctx, stream, keys)
		var closed *subresources.ClosedError
		if !errors.As(err, &closed) || !closed.Temporary() {
			return s.result(err)
		}
		s.printer("\r\n")(fmt.Sprintf("\r\nThe connection ended: %s. Reconnecting, Ctrl+] quits.", closed))
		if stream, err = s.reconnect(ctx, keys); err != nil {
			return s.result(err)
		}
		s.printer("\r\n")(fmt.Sprintf("Reconnected to %s console.", s.vmi.Name))
	}
}

// printer returns a function that prints lines with this end. A raw terminal needs a different one.
func (s *session) printer(end string) func(string) {
	return func(text string) { _, _ = fmt.Fprint(s.cli.ErrOut, text, end) }
}

// result returns the command's error for the end of the session.
func (s *session) result(err error) error {
	switch {
	case err == nil, errors.Is(err, errEscaped), errors.Is(err, io.EOF), errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, subresources.ErrLost):
		return fmt.Errorf("you were disconnected from the console of %s. This has one of these reasons:\r\n"+
			" - the virtual machine was powered off or migrated\r\n"+
			" - another user connected to its console\r\n"+
			" - the network failed\r\n(%w)", s.vmi.Name, err)
	default:
		return fmt.Errorf("you were disconnected from the console of %s: %w", s.vmi.Name, err)
	}
}

// serve connects the terminal with the stream until one of them ends. It returns nil for the end of the stream or the
// keyboard.
func (s *session) serve(ctx context.Context, stream *subresources.Stream, keys <-chan keystrokes) error {
	defer func() { _ = stream.Close() }()
	received := make(chan error, 1)
	go func() {
		_, err := io.Copy(s.cli.Out, stream)
		received <- err
	}()
	sent := make(chan error, 1)
	done := make(chan struct{})
	defer close(done)
	go func() { sent <- sendKeys(stream, keys, done) }()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-received:
		return err
	case err := <-sent:
		if err == nil || errors.Is(err, errEscaped) {
			return err
		}
		return <-received // This error is more precise about why the connection ended.
	}
}

// sendKeys sends keystrokes until the keyboard ends, the user quits or done is closed.
func sendKeys(stream io.Writer, keys <-chan keystrokes, done <-chan struct{}) error {
	for {
		select {
		case <-done:
			return nil
		case k, open := <-keys:
			if !open {
				return nil
			}
			if len(k.bytes) > 0 {
				if _, err := stream.Write(k.bytes); err != nil {
					return err
				}
			}
			if k.escaped {
				return errEscaped
			}
		}
	}
}

// reconnect opens the console again, unless the user quits. Keystrokes are discarded meanwhile.
func (s *session) reconnect(ctx context.Context, keys <-chan keystrokes) (*subresources.Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		stream *subresources.Stream
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		stream, err := s.dial.Dial(ctx, s.printer("\r\n"))
		opened <- result{stream, err}
	}()
	for {
		select {
		case r := <-opened:
			return r.stream, r.err
		case k, open := <-keys:
			if !open || k.escaped || bytes.IndexByte(k.bytes, interrupt) >= 0 {
				cancel()
				if r := <-opened; r.stream != nil {
					_ = r.stream.Close()
				}
				return nil, errEscaped
			}
		}
	}
}

// keystrokes is the result of one read of the keyboard.
type keystrokes struct {
	// bytes are the bytes before the escape sequence.
	bytes   []byte
	escaped bool
}

// readKeys reads the keyboard until the program ends: a read of a terminal cannot be canceled.
func readKeys(in io.Reader) <-chan keystrokes {
	keys := make(chan keystrokes, queueLength)
	go func() {
		defer close(keys)
		buffer := make([]byte, readSize)
		for {
			n, err := in.Read(buffer)
			before, _, escaped := bytes.Cut(buffer[:n], []byte{escape})
			keys <- keystrokes{bytes: bytes.Clone(before), escaped: escaped}
			if err != nil || escaped {
				return
			}
		}
	}()
	return keys
}
