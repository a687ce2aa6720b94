// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package stream carries the bytes of consoles, screens and tunnels between a client's websocket and a node agent's. Each
// stream has a bounded buffer for each direction and holds up nothing but itself: who does not read makes the other side wait,
// and is cut after a while. How a side ended, its close code and reason, is told to the other.
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

	"github.com/vireo-project/vireo/internal/agentapi"
)

// Limits bound what streams may cost. Zero values stand for the defaults.
type Limits struct {
	// Total is how many streams there may be at once. PerInstance is how many of them may lead to one instance, PerNamespace to the
	// instances of one namespace, and PerUser be one user's. Defaults: 1000, 200, 300 and 300. A stream costs about 100 KiB.
	Total, PerInstance, PerNamespace, PerUser int
	// Reserve is how many of the last of all streams are for those who have few: a namespace and a user with fewer than Few each.
	// So a few that take all they may have leave room for the others. Defaults: 200 and 10.
	Reserve, Few int
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
	l.Total = cmp.Or(l.Total, 1000)
	l.PerInstance = cmp.Or(l.PerInstance, 200)
	l.PerNamespace = cmp.Or(l.PerNamespace, 300)
	l.PerUser = cmp.Or(l.PerUser, 300)
	l.Reserve = cmp.Or(l.Reserve, 200)
	l.Few = cmp.Or(l.Few, 10)
	return l
}

// Bridge carries streams.
type Bridge struct {
	limits   Limits
	stopping <-chan struct{}

	mu    sync.Mutex
	total int
	// each counts the streams of whoever has any.
	each map[holder]int
}

// holder is whoever streams are counted for: an instance, a namespace or a user.
type holder struct{ kind, name string }

// NewBridge makes a Bridge. It ends all streams when stopping is closed.
func NewBridge(limits Limits, stopping <-chan struct{}) *Bridge {
	return &Bridge{limits: limits.withDefaults(), stopping: stopping, each: map[holder]int{}}
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
	end := b.newSession(client, agent, s).run()
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

// userOf is who asks.
func userOf(r *http.Request) string {
	if user, ok := request.UserFrom(r.Context()); ok {
		return user.GetName()
	}
	return ""
}

// admit counts a stream, or refuses it.
func (b *Bridge) admit(instance types.NamespacedName, user string) (release func(), err error) {
	shares := []struct {
		holder
		limit int
		what  string
	}{
		{holder{"instance", instance.String()}, b.limits.PerInstance, "VirtualMachineInstance " + instance.String()},
		{holder{"namespace", instance.Namespace}, b.limits.PerNamespace, "namespace " + instance.Namespace},
		{holder{"user", user}, b.limits.PerUser, "user " + user},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.stopping:
		return nil, apierrors.NewServiceUnavailable(goodbye)
	default:
	}
	if b.total >= b.limits.Total {
		return nil, refuse("virt-api has %d streams open, which is its limit: close some or try again", b.total)
	}
	for _, s := range shares {
		if b.each[s.holder] >= s.limit {
			return nil, refuse("%s has %d streams open at this virt-api, which is the limit for one %s: close some", s.what, s.limit, s.kind)
		}
	}
	for _, s := range shares[1:] {
		if b.total >= b.limits.Total-b.limits.Reserve && b.each[s.holder] >= b.limits.Few {
			return nil, refuse("virt-api has %d streams open, and the rest are reserved for those with fewer than %d; %s has %d: close some or try again",
				b.total, b.limits.Few, s.what, b.each[s.holder])
		}
	}
	b.total++
	for _, s := range shares {
		b.each[s.holder]++
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.total--
		for _, s := range shares {
			if b.each[s.holder]--; b.each[s.holder] == 0 {
				delete(b.each, s.holder)
			}
		}
	}, nil
}

func refuse(format string, arguments ...any) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(format, arguments...), 1)
}
