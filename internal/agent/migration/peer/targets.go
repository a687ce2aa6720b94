// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package peer

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// Target is the launcher Pod of a migration on its target node, once it is ready to receive the guest or refuses it.
type Target struct {
	// Pod is the launcher Pod.
	Pod hypervisor.PodRef
	// Address is where its QEMU listens.
	Address string
	// Domain is the XML of the domain as it would be started here.
	Domain string
	// Refusal is why the guest cannot be received; empty if it can.
	Refusal string
	// Digests are the digests by which the Pod's spec names images: see podspec.ImageDigests.
	Digests map[string]string
	// Plain reports whether the transfer is not encrypted.
	Plain bool
}

// Targets stores the targets of migrations to this node, by the migration's UID. An agent that is restarted prepares them again. It
// does not remember releases: then the guest runs once the target owns it according to the VMI's status.
type Targets struct {
	mu       sync.Mutex
	prepared map[types.UID]Target
	released map[types.UID]bool
}

// NewTargets makes empty Targets.
func NewTargets() *Targets {
	return &Targets{prepared: map[types.UID]Target{}, released: map[types.UID]bool{}}
}

// Put stores the target of a migration.
func (t *Targets) Put(migration types.UID, target Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prepared[migration] = target
}

// Get returns the target of a migration, and whether there is one.
func (t *Targets) Get(migration types.UID) (Target, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	target, ok := t.prepared[migration]
	return target, ok
}

// Release stores that the source's agent has released the guest: the source's will never run again.
func (t *Targets) Release(migration types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released[migration] = true
}

// IsReleased reports whether the source's agent has released the guest to this process.
func (t *Targets) IsReleased(migration types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.released[migration]
}

// Forget removes a migration that has ended, and all migrations to a Pod.
func (t *Targets) Forget(pod, migration types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.prepared, migration)
	delete(t.released, migration)
	for uid, target := range t.prepared {
		if target.Pod.UID == pod {
			delete(t.prepared, uid)
			delete(t.released, uid)
		}
	}
}
