// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package stream copies the bytes of consoles, screens and tunnels between a client's websocket and a node agent's.
// Each stream has one bounded buffer per direction, so that a slow stream delays only itself: a side that does not read
// blocks the other, and is disconnected after Limits.WriteTimeout. The close code and reason of one side are forwarded
// to the other.
package stream

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Limits limit the number of streams and how long they block. Zero values stand for the defaults.
type Limits struct {
	// Total limits the streams that are open at once, PerInstance those to one VMI, PerNamespace those to the VMIs of
	// one namespace, and PerUser those of one user. Defaults: 1000, 200, 300 and 300. A stream costs about 100 KiB.
	Total, PerInstance, PerNamespace, PerUser int
	// Reserve is how many streams of Total are reserved for namespaces and users with fewer than Few streams, so that a
	// few tenants at their limits leave some for the others. Defaults: 200 and 10.
	Reserve, Few int
	// WriteTimeout is how long a side may take to read what it was sent. Default: 1 minute.
	WriteTimeout time.Duration
	// PingInterval is how often each side is pinged. Pings keep idle connections alive in proxies and detect sides that
	// are gone. Default: 20 seconds.
	PingInterval time.Duration
	// PingTimeout is how long a side may take to respond to a ping. It must exceed WriteTimeout, since a side responds
	// late if the other one does not read its bytes. Default: WriteTimeout plus 15 seconds.
	PingTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	l.WriteTimeout = cmp.Or(l.WriteTimeout, time.Minute)
	l.PingInterval = cmp.Or(l.PingInterval, 20*time.Second)
	l.PingTimeout = cmp.Or(l.PingTimeout, l.WriteTimeout+15*time.Second)
	l.Total = cmp.Or(l.Total, 1000)
	l.PerInstance = cmp.Or(l.PerInstance, 200)
	l.PerNamespace = cmp.Or(l.PerNamespace, 300)
	l.PerUser = cmp.Or(l.PerUser, 300)
	l.Reserve = cmp.Or(l.Reserve, 200)
	l.Few = cmp.Or(l.Few, 10)
	return l
}

// Bridge serves streams within Limits.
type Bridge struct {
	limits   Limits
	stopping <-chan struct{}

	mu    sync.Mutex
	total int
	// open is the number of open streams by owner. An owner without streams has no entry.
	open map[owner]int
}

// owner is what streams are counted by: an instance, a namespace or a user.
type owner struct{ kind, name string }

// NewBridge returns a Bridge, which ends all streams when stopping is closed.
func NewBridge(limits Limits, stopping <-chan struct{}) *Bridge {
	return &Bridge{limits: limits.withDefaults(), stopping: stopping, open: map[owner]int{}}
}

// Stream is a request for a stream.
type Stream struct {
	// Kind selects the metric.
	Kind Kind
	// Instance is the VMI that the stream connects to.
	Instance types.NamespacedName
	// Buffer is the size of the buffer of each direction, in bytes. A message that fits into it stays one message.
	// Default: 32 KiB.
	Buffer int
	// Dial opens the stream to the agent.
	Dial func(context.Context) (*websocket.Conn, error)
}

// defaultBuffer is the buffer size of io.Copy, which KubeVirt's clients use.
const defaultBuffer = 32 << 10

// Serve upgrades a request to a stream and returns when the stream has ended. If it returns an error, the caller has to
// write an error response: the stream to the agent is opened before the client's upgrade is accepted, so that errors
// are ordinary responses.
func (b *Bridge) Serve(w http.ResponseWriter, r *http.Request, s Stream) error {
	if err := checkUpgrade(r); err != nil {
		return err
	}
	release, err := b.admit(s.Instance, userOf(r))
	if err != nil {
		return err
	}
	defer release()
	agent, err := s.Dial(r.Context())
	if err != nil {
		return err
	}
	client, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{agentapi.ReasonProtocol, agentapi.StreamProtocol},
		// The check of the Origin header protects cookies, and virt-api authenticates without cookies.
		InsecureSkipVerify: true,
	})
	if err != nil {
		_ = agent.Close(websocket.StatusGoingAway, "the client is gone")
		log.FromContext(r.Context()).V(1).Info("Client could not be upgraded", "reason", err.Error())
		return nil // websocket.Accept has written the response
	}
	defer s.Kind.count(s.Instance)()
	if s.Buffer == 0 {
		s.Buffer = defaultBuffer
	}
	end := b.newSession(client, agent, s).run()
	log.FromContext(r.Context()).V(1).Info("Stream ended", "kind", s.Kind, "vmi", s.Instance, "by", end.initiator(),
		"code", int(end.code), "reason", end.reason)
	return nil
}

// checkUpgrade returns an error for a request that is no websocket upgrade. The library's own error would be plain text
// instead of a Status.
func checkUpgrade(r *http.Request) error {
	hasToken := func(header, token string) bool {
		for _, value := range r.Header.Values(header) {
			for element := range strings.SplitSeq(value, ",") {
				if strings.EqualFold(strings.TrimSpace(element), token) {
					return true
				}
			}
		}
		return false
	}
	if r.ProtoMajor != 1 || !hasToken("Connection", "upgrade") || !hasToken("Upgrade", "websocket") ||
		!hasToken("Sec-WebSocket-Version", "13") ||
		r.Header.Get("Sec-WebSocket-Key") == "" {
		return apierrors.NewBadRequest(
			"this request needs a websocket: send it with HTTP/1.1, Connection: Upgrade, Upgrade: websocket and Sec-WebSocket-Version: 13")
	}
	return nil
}

// userOf returns the name of the authenticated user.
func userOf(r *http.Request) string {
	if user, ok := request.UserFrom(r.Context()); ok {
		return user.GetName()
	}
	return ""
}

// admit counts a stream until release is called, or returns an error if a limit is reached.
func (b *Bridge) admit(instance types.NamespacedName, user string) (release func(), err error) {
	owners := []struct {
		owner
		limit       int
		description string
	}{
		{owner{"instance", instance.String()}, b.limits.PerInstance, "VirtualMachineInstance " + instance.String()},
		{owner{"namespace", instance.Namespace}, b.limits.PerNamespace, "namespace " + instance.Namespace},
		{owner{"user", user}, b.limits.PerUser, "user " + user},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.stopping:
		return nil, apierrors.NewServiceUnavailable(stoppingReason)
	default:
	}
	if b.total >= b.limits.Total {
		return nil, tooManyStreams("virt-api has %d streams open, which is its limit: close some or try again", b.total)
	}
	for _, o := range owners {
		if b.open[o.owner] >= o.limit {
			return nil, tooManyStreams("%s has %d streams open at this virt-api, which is the limit for one %s: close some",
				o.description, o.limit, o.kind)
		}
	}
	for _, o := range owners[1:] {
		if b.total >= b.limits.Total-b.limits.Reserve && b.open[o.owner] >= b.limits.Few {
			return nil, tooManyStreams(
				"virt-api has %d streams open, and the rest are reserved for those with fewer than %d; %s has %d: close some or try again",
				b.total, b.limits.Few, o.description, b.open[o.owner])
		}
	}
	b.total++
	for _, o := range owners {
		b.open[o.owner]++
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total--
		for _, o := range owners {
			if b.open[o.owner]--; b.open[o.owner] == 0 {
				delete(b.open, o.owner)
			}
		}
	}, nil
}

func tooManyStreams(format string, arguments ...any) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(format, arguments...), 1)
}
