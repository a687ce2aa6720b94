// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// The guest determines the length of a guest agent's response, up to libvirt's 4 MiB, and a few bytes of JSON can
// become a large value in Go. So lists are decoded entry by entry, and entries beyond the limit are counted and
// dropped.

// errResponse means that a response does not have the form that the command defines.
var errResponse = errors.New("the guest agent's response is not valid for the command")

// openResponse returns a decoder at the value of a response, {"return": value}.
func openResponse(response []byte) (*json.Decoder, error) {
	d := json.NewDecoder(bytes.NewReader(response))
	for _, wanted := range []json.Token{json.Delim('{'), "return"} {
		got, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errResponse, err)
		}
		if got != wanted {
			return nil, errResponse
		}
	}
	return d, nil
}

// parseResponse decodes a response that is not a list. It must not be longer than maxAgentResponse.
func parseResponse(response []byte, into any) error {
	if len(response) > maxAgentResponse {
		return fmt.Errorf("%w: it has %d bytes, more than %d", errResponse, len(response), maxAgentResponse)
	}
	d, err := openResponse(response)
	if err == nil {
		err = d.Decode(into)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errResponse, err)
	}
	return nil
}

// parseList decodes a response that is a list.
func parseList[T any](response []byte, limit int) (hypervisor.List[T], error) {
	d, err := openResponse(response)
	if err != nil {
		return hypervisor.List[T]{}, err
	}
	return decodeList[T](d, limit)
}

// parseInner decodes a list within an entry of a list. A missing list is empty.
func parseInner[T any](list json.RawMessage, limit int) ([]T, error) {
	if len(list) == 0 || string(list) == "null" {
		return nil, nil
	}
	out, err := decodeList[T](json.NewDecoder(bytes.NewReader(list)), limit)
	return out.Items, err
}

func decodeList[T any](d *json.Decoder, limit int) (hypervisor.List[T], error) {
	var list hypervisor.List[T]
	if open, err := d.Token(); err != nil || open != json.Delim('[') {
		return list, errResponse
	}
	for d.More() {
		if len(list.Items) == limit {
			// The entry must be valid JSON.
			if err := d.Decode(&nothing{}); err != nil {
				return list, fmt.Errorf("%w: %w", errResponse, err)
			}
			list.Omitted++
			continue
		}
		var entry T
		if err := d.Decode(&entry); err != nil {
			return list, fmt.Errorf("%w: %w", errResponse, err)
		}
		list.Items = append(list.Items, entry)
	}
	if _, err := d.Token(); err != nil {
		return list, fmt.Errorf("%w: %w", errResponse, err)
	}
	return list, nil
}

// nothing decodes any JSON value and discards it.
type nothing struct{}

// UnmarshalJSON discards the value.
func (*nothing) UnmarshalJSON([]byte) error { return nil }

// largeResponse admits one large response at a time to the C library. The library keeps it outside of Go's heap, and
// the relay cannot find out to which call it belongs, so only one call at a time may have such a response.
type largeResponse struct {
	// calls is held during a call that may have a large response.
	calls sync.Mutex

	mu sync.Mutex
	// reserve waits for the call's memory. It is nil if no call may have a large response, or it has arrived.
	reserve func() error
	// late closes the connection if the response takes too long.
	late *time.Timer
}

// startConversation starts a conversation with the launcher, unless the context has one.
func (c *Conn) startConversation(ctx context.Context) (_ context.Context, end func()) {
	return c.options.Responses.StartConversation(ctx, c.pod.VMI.Namespace)
}

// large makes a call whose response may be large.
func (c *Conn) large(ctx context.Context, call func() error) error {
	l := &c.relay.large
	l.calls.Lock()
	defer l.calls.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.relay.ctx, cancel)()
	l.set(func() error { return hypervisor.Reserve(ctx) })
	defer l.set(nil)
	return call()
}

func (l *largeResponse) set(reserve func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserve = reserve
	if l.late != nil {
		l.late.Stop()
		l.late = nil
	}
}

// admit waits for the memory for a large response.
func (l *largeResponse) admit(r *relay) error {
	l.mu.Lock()
	reserve := l.reserve
	l.reserve = nil
	l.mu.Unlock()
	if reserve == nil {
		return fmt.Errorf("%w: no call is waiting for a large response", errMessage)
	}
	// Responses wait behind this one.
	resume := r.deadlines.pause()
	err := reserve()
	resume()
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = time.AfterFunc(largeResponseTimeout,
		func() { r.cut(fmt.Errorf("%w: a response was not received completely", errSilent)) })
	return nil
}

// largeLimits returns the limits of a direct connection. Its responses belong to the conversation of the context, which
// may last longer than the context. Without one, all responses must be small.
func largeLimits(ctx context.Context) libvirtwire.Large {
	return libvirtwire.Large{Above: hypervisor.SmallResponse, Timeout: largeResponseTimeout, Admit: func() error {
		if !hypervisor.InConversation(ctx) {
			return errMessage
		}
		return hypervisor.Reserve(context.WithoutCancel(ctx))
	}}
}
