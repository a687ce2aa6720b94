// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package stream carries the bytes of consoles, screens and tunnels between a client's websocket and a node agent's. Each
// stream has a bounded buffer for each direction and holds up nothing but itself: who does not read makes the other side wait,
// and is cut after a while. How a side ended, its close code and reason, is told to the other.
package stream

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// Limits bound what streams may cost. Zero values stand for the defaults.
type Limits struct {
	// Total is how many streams there may be at once, and PerInstance how many of them to one instance.
	// Defaults: 1000 and 300. A stream costs about 100 KiB.
	Total, PerInstance int
	// WriteTimeout is how long a side may leave something unread. Default: 1 minute.
	WriteTimeout time.Duration
	// PingInterval is how often each side is asked whether it is still there, so that idle connections are neither
	// forgotten on the way nor kept when the other side is gone. Default: 20 seconds.
	PingInterval time.Duration
	// PingTimeout is how long it may take to answer. A side whose bytes the other does not read answers late: it is more
	// than WriteTimeout. Default: WriteTimeout and 15 seconds.
	PingTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	set := func(value *time.Duration, otherwise time.Duration) {
		if *value == 0 {
			*value = otherwise
		}
	}
	set(&l.WriteTimeout, time.Minute)
	set(&l.PingInterval, 20*time.Second)
	set(&l.PingTimeout, l.WriteTimeout+15*time.Second)
	if l.Total == 0 {
		l.Total = 1000
	}
	if l.PerInstance == 0 {
		l.PerInstance = 300
	}
	return l
}

// Bridge carries streams.
type Bridge struct {
	limits   Limits
	stopping <-chan struct{}

	mu    sync.Mutex
	total int
	each  map[types.NamespacedName]int
}

// NewBridge makes a Bridge. It ends all streams when stopping is closed.
func NewBridge(limits Limits, stopping <-chan struct{}) *Bridge {
	return &Bridge{limits: limits.withDefaults(), stopping: stopping, each: map[types.NamespacedName]int{}}
}

// Stream is what is asked for.
type Stream struct {
	// Kind is counted.
	Kind Kind
	// Instance is what the stream leads to.
	Instance types.NamespacedName
	// Buffer is how many bytes are carried at once; a message that fits stays one. Default: 32 KiB.
	Buffer int
	// Dial opens the agent's side.
	Dial func(context.Context) (*websocket.Conn, error)
}

// defaultBuffer is what io.Copy, which KubeVirt's clients use, reads at once.
const defaultBuffer = 32 << 10

// Serve answers a request with a stream and returns when it has ended. An error is for the caller to answer with: the agent is
// asked before the client's upgrade is accepted, so that refusals are ordinary.
func (b *Bridge) Serve(w http.ResponseWriter, r *http.Request, s Stream) error {
	if err := upgradable(r); err != nil {
		return err
	}
	release, err := b.admit(s.Instance)
	if err != nil {
		return err
	}
	defer release()
	agent, err := s.Dial(r.Context())
	if err != nil {
		return err
	}
	client, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{agentapi.StreamProtocol},
		// Who asks was authenticated by what they sent and not by where a page came from: there are no cookies.
		InsecureSkipVerify: true,
	})
	if err != nil {
		_ = agent.Close(websocket.StatusGoingAway, "the client is gone")
		log.FromContext(r.Context()).V(1).Info("Client could not be upgraded", "reason", err.Error())
		return nil // it was answered
	}
	defer s.Kind.count(s.Instance)()
	if s.Buffer == 0 {
		s.Buffer = defaultBuffer
	}
	end := b.newSession(client, agent, s.Buffer).run()
	log.FromContext(r.Context()).V(1).Info("Stream ended", "kind", s.Kind, "vmi", s.Instance, "by", end.who(), "code", int(end.code), "reason", end.reason)
	return nil
}

// upgradable refuses what is no websocket with a Status, which the library would answer with plain text.
func upgradable(r *http.Request) error {
	has := func(header, token string) bool {
		for _, value := range r.Header.Values(header) {
			for one := range strings.SplitSeq(value, ",") {
				if strings.EqualFold(strings.TrimSpace(one), token) {
					return true
				}
			}
		}
		return false
	}
	if r.ProtoMajor != 1 || !has("Connection", "upgrade") || !has("Upgrade", "websocket") || !has("Sec-WebSocket-Version", "13") ||
		r.Header.Get("Sec-WebSocket-Key") == "" {
		return apierrors.NewBadRequest("this takes a websocket: ask with HTTP/1.1, Connection: Upgrade, Upgrade: websocket and Sec-WebSocket-Version: 13")
	}
	return nil
}

// admit counts a stream, or refuses it.
func (b *Bridge) admit(instance types.NamespacedName) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.stopping:
		return nil, apierrors.NewServiceUnavailable(goodbye)
	default:
	}
	switch {
	case b.total >= b.limits.Total:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("virt-api has %d streams open and takes no more, close some or try again", b.total), 1)
	case b.each[instance] >= b.limits.PerInstance:
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("virt-api has %d streams to %s open and takes no more, close some",
			b.each[instance], instance), 1)
	}
	b.total++
	b.each[instance]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total--
		if b.each[instance]--; b.each[instance] == 0 {
			delete(b.each, instance)
		}
	}, nil
}
