// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// Arrival is a guest that is expected, and the Pod that is ready for it.
type Arrival struct {
	// Pod is the launcher Pod.
	Pod hypervisor.PodRef
	// Address is the Pod's, where its QEMU listens.
	Address string
	// Domain is the XML of the domain as it would be started here.
	Domain string
	// Refusal is why the guest cannot come, empty if it can.
	Refusal string
	// Digests are those that the Pod's spec names images by: see podspec.ImageDigests.
	Digests map[string]string
	// Plain says that the guest comes unencrypted.
	Plain bool
}

// Arrivals is what this process knows of guests on their way to the node. An agent that is restarted prepares them again; that
// a guest was released is not known any more then, and the status says who owns it, sooner or later.
type Arrivals struct {
	mu       sync.Mutex
	expected map[types.UID]Arrival
	released map[types.UID]bool
}

// NewArrivals makes Arrivals.
func NewArrivals() *Arrivals {
	return &Arrivals{expected: map[types.UID]Arrival{}, released: map[types.UID]bool{}}
}

// Expect says that everything is ready for the guest of a migration.
func (a *Arrivals) Expect(migration types.UID, arrival Arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expected[migration] = arrival
}

// Expected is the Pod that is ready for the guest of a migration.
func (a *Arrivals) Expected(migration types.UID) (Arrival, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	arrival, ok := a.expected[migration]
	return arrival, ok
}

// Release notes that the source's guest will never run again.
func (a *Arrivals) Release(migration types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.released[migration] = true
}

// Released says whether that was noted.
func (a *Arrivals) Released(migration types.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.released[migration]
}

// Forget lets go of what is known of a Pod and of a migration that has come to its end.
func (a *Arrivals) Forget(pod, migration types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.expected, migration)
	delete(a.released, migration)
	for uid, arrival := range a.expected {
		if arrival.Pod.UID == pod {
			delete(a.expected, uid)
			delete(a.released, uid)
		}
	}
}
