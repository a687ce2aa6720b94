// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxPanicked is of how many VMIs panics are counted. A node has fewer guests; those of two days may be more.
	maxPanicked = 1000
	// panicsKept is how long after its last one a guest's panics are counted. KubeVirt's alert is about 24 hours.
	panicsKept = 48 * time.Hour
)

// panics counts the panics of guests' kernels by VMI. They outlast the VMI: the VM gets another one of the same name.
type panics struct {
	mu   sync.Mutex
	seen map[types.NamespacedName]panicked
}

// panicked is how often a guest has panicked, and when it did last.
type panicked struct {
	count uint64
	last  time.Time
}

func (p *panics) add(vmi types.NamespacedName, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	if _, known := p.seen[vmi]; !known && len(p.seen) >= maxPanicked {
		delete(p.seen, p.oldest())
	}
	if p.seen == nil {
		p.seen = map[types.NamespacedName]panicked{}
	}
	p.seen[vmi] = panicked{p.seen[vmi].count + 1, now}
}

func (p *panics) expire(now time.Time) {
	maps.DeleteFunc(p.seen, func(_ types.NamespacedName, s panicked) bool { return now.Sub(s.last) > panicsKept })
}

func (p *panics) oldest() types.NamespacedName {
	var oldest types.NamespacedName
	for vmi, s := range p.seen {
		if first, found := p.seen[oldest]; !found || s.last.Before(first.last) {
			oldest = vmi
		}
	}
	return oldest
}

func (p *panics) counts(now time.Time) map[types.NamespacedName]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expire(now)
	counts := make(map[types.NamespacedName]uint64, len(p.seen))
	for vmi, s := range p.seen {
		counts[vmi] = s.count
	}
	return counts
}

// Panics returns how often the kernels of guests have panicked on this node. A VMI is left out two days after its last panic.
func (m *Manager) Panics() map[types.NamespacedName]uint64 { return m.panics.counts(time.Now()) }
