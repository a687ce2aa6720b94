// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// generateName returns the prefix of the names of the set's VMIs. Source: KubeVirt's getVirtualMachineBaseName.
func generateName(set *v1.VirtualMachineInstanceReplicaSet) string {
	switch meta := &set.Spec.Template.ObjectMeta; {
	case meta.Name != "":
		return meta.Name
	case meta.GenerateName != "":
		return meta.GenerateName
	default:
		return set.Name
	}
}

// names generates names for new VMIs: the first of the set's own sequence that are free. Reconciliations that observe
// the same VMIs generate the same names, so that the API server rejects the VMIs that a concurrent or stale one would
// add.
type names struct {
	mu     sync.Mutex
	prefix string
	uid    types.UID
	next   uint64
	taken  map[string]bool
}

func newNames(set *v1.VirtualMachineInstanceReplicaSet) *names {
	prefix := generateName(set)
	return &names{prefix: prefix[:min(len(prefix), kit.PrefixLength)], uid: set.UID, taken: map[string]bool{}}
}

// take returns a free name. It returns each name only once.
func (n *names) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		name := n.prefix + kit.Suffix(n.uid, n.next)
		n.next++
		if !n.taken[name] {
			n.taken[name] = true
			return name
		}
	}
}
