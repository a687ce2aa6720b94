// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// RecordedEvents is an event recorder that collects events as "Normal Reason: note".
type RecordedEvents struct {
	mu     sync.Mutex
	events []string
}

// Eventf implements events.EventRecorder.
//
//nolint:revive // argument-limit: the signature is client-go's.
func (h *RecordedEvents) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf("%s %s: %s", kind, reason, fmt.Sprintf(note, args...)))
}

// fromSource is an event recorder that appends the source to the event.
type fromSource struct {
	*RecordedEvents
	source string
}

// Eventf implements events.EventRecorder.
func (o fromSource) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) { //nolint:revive // argument-limit: as above
	o.RecordedEvents.Eventf(regarding, related, kind, reason, action, note+" [%s]",
		append(slices.Clone(args), o.source)...)
}

// Agent returns a recorder of events whose source is the agent of a node.
func (h *RecordedEvents) Agent(node string) events.EventRecorder {
	return fromSource{h, "virt-handler on " + node}
}

// Take returns the events so far and clears them.
func (h *RecordedEvents) Take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.events
	h.events = nil
	return out
}
