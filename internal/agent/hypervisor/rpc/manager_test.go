// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestWaitConnected(t *testing.T) {
	errBroken, errStillWaiting := errors.New("broken"), errors.New("still waiting")
	pod := hypervisor.PodRef{UID: "a"}
	connected := &Conn{relay: &relay{ctx: context.Background()}}
	for name, tc := range map[string]struct {
		then func(m *Manager, s *session, stop context.CancelFunc)
		want error
	}{
		"it is made": {func(_ *Manager, s *session, _ context.CancelFunc) { s.set(connected, nil) }, nil},
		"an attempt fails first": {func(_ *Manager, s *session, _ context.CancelFunc) {
			s.set(nil, hypervisor.ErrConnecting)
			s.set(connected, nil)
		}, nil},
		"it cannot be made": {func(_ *Manager, s *session, _ context.CancelFunc) { s.set(nil, asUnreachable(errBroken)) }, errBroken},
		"the Pod is gone":   {func(m *Manager, _ *session, _ context.CancelFunc) { m.Forget(pod.UID) }, hypervisor.ErrConnecting},
		"the wait ends":     {func(_ *Manager, _ *session, stop context.CancelFunc) { stop() }, hypervisor.ErrConnecting},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &Manager{notify: func(types.NamespacedName) {}, sessions: map[types.UID]*session{}}
				ended, end := context.WithCancel(t.Context())
				s := &session{manager: m, pod: pod, cancel: end, ended: ended.Done(), err: hypervisor.ErrConnecting,
					changed: make(chan struct{})}
				m.sessions[pod.UID] = s
				if _, err := m.Connect(pod); !errors.Is(err, hypervisor.ErrConnecting) {
					t.Fatalf("Conn waits or fails: %v", err)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var conn *Conn
				err := errStillWaiting
				go func() { conn, err = m.WaitConnected(ctx, pod) }()
				synctest.Wait()
				if !errors.Is(err, errStillWaiting) {
					t.Fatalf("WaitConnected has not waited: %v, %v", conn, err)
				}
				tc.then(m, s, stop)
				synctest.Wait()
				if !errors.Is(err, tc.want) || (err == nil) != (conn == connected) {
					t.Errorf("got %v, %v, want %v", conn, err, tc.want)
				}
			})
		})
	}
}
