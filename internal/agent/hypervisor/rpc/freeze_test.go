// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/test/scriptedlibvirtd"
)

// A guest agent that connected before the freeze must not cause a check: the check could find the guest not frozen yet,
// and remove the note of a freeze that is about to happen.
func TestFreezeIgnoresEarlierAgentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := &Conn{relay: &relay{ctx: ctx}, thaw: newThawer()}
		// A check waits for this lock, so it cannot receive another trigger.
		if err := c.thaw.lock.Acquire(ctx, 1); err != nil {
			t.Fatal(err)
		}
		c.guestConnected()
		c.KeepThaw("ns_vm", &hypervisor.Freeze{Thaw: time.Now().Add(time.Hour)})
		synctest.Wait()
		c.guestConnected()
		synctest.Wait()
		if len(c.thaw.trigger) != 0 {
			t.Error("the connection before the freeze caused a check")
		}
		c.guestConnected()
		synctest.Wait()
		if len(c.thaw.trigger) != 1 {
			t.Error("the connection after the freeze caused no check")
		}
	})
}

func TestFreezeAndThawWaitForEachOther(t *testing.T) {
	c := &Conn{thaw: newThawer()}
	if err := c.thaw.lock.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"freeze": c.Freeze(canceled, "ns_vm", time.Hour),
		"thaw":   c.Thaw(canceled, "ns_vm"),
		"check":  c.dropStaleFreeze(canceled, "ns_vm"),
	} {
		if err == nil {
			t.Errorf("a %s did not wait for the one that runs", name)
		}
	}
}

// A guest whose agent does not respond is not frozen, and a note of that freeze would stay as long as it does not. If
// the agent stops responding to the freeze itself, the guest may still freeze: the note is written before, and again
// with a time that has passed.
func TestAFreezeIsNotedOnceItIsSent(t *testing.T) {
	for name, tc := range map[string]struct{ responses, notes int32 }{
		"no response to the status": {0, 0},
		"no response to the freeze": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var asked, noted atomic.Int32
			m, changed := startDaemon(t, newNode(t), func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
				const agentCommand, agentUnresponsive = 3, 86 // QEMU_PROC_DOMAIN_AGENT_COMMAND, VIR_ERR_AGENT_UNRESPONSIVE
				var e scriptedlibvirtd.Encoder
				switch c.Proc {
				case scriptedlibvirtd.ProcLookup:
					return p.Reply(c, e.Domain("ns_vm").Bytes()) == nil
				case agentCommand:
					if asked.Add(1) <= tc.responses {
						return p.Reply(c, e.OptionalStr(`{"return":"thawed"}`).Bytes()) == nil
					}
					return p.Refuse(c, agentUnresponsive, "QEMU guest agent is not connected") == nil
				case scriptedlibvirtd.ProcSetMetadata:
					noted.Add(1)
					return p.Reply(c, nil) == nil
				}
				return false
			})
			err := awaitConn(t, m, changed).Freeze(t.Context(), "ns_vm", time.Hour)
			if err == nil || asked.Load() != tc.responses+1 || noted.Load() != tc.notes {
				t.Errorf("%v after %d commands to the guest agent and %d notes", err, asked.Load(), noted.Load())
			}
		})
	}
}

// unsynced is a broker whose claims cannot be written to the disk.
type unsynced struct{ Broker }

var errNoSpace = errors.New("no space left")

func (unsynced) SyncState(context.Context, types.UID, string) error { return errNoSpace }

// The persistent state is a part of what is frozen, whoever asks for it.
func TestEachFreezeSyncsTheState(t *testing.T) {
	for name, freeze := range map[string]func(*Conn) error{
		"on a user's request": func(c *Conn) error { return c.Freeze(t.Context(), "ns_vm", time.Hour) },
		"for a snapshot":      func(c *Conn) error { return c.FreezeForSnapshot(t.Context(), "ns_vm") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.options.Broker = unsynced{n.options.Broker}
			var frozen atomic.Bool
			m, changed := startDaemon(t, n, func(p *scriptedlibvirtd.Peer, c scriptedlibvirtd.Call) bool {
				const agentCommand = 3 // QEMU_PROC_DOMAIN_AGENT_COMMAND
				var e scriptedlibvirtd.Encoder
				switch {
				case c.Proc == scriptedlibvirtd.ProcLookup:
					return p.Reply(c, e.Domain("ns_vm").Bytes()) == nil
				case c.Proc == scriptedlibvirtd.ProcSetMetadata:
					return p.Reply(c, nil) == nil
				case c.Proc != agentCommand:
					return false
				case strings.Contains(string(c.Args), "guest-fsfreeze-freeze"):
					frozen.Store(true)
					return p.Reply(c, e.OptionalStr(`{"return":1}`).Bytes()) == nil
				default:
					return p.Reply(c, e.OptionalStr(`{"return":"thawed"}`).Bytes()) == nil
				}
			})
			if err := freeze(awaitConn(t, m, changed)); !errors.Is(err, errNoSpace) || !frozen.Load() {
				t.Errorf("frozen: %t, got %v, want that the state is not on the disk", frozen.Load(), err)
			}
		})
	}
}
