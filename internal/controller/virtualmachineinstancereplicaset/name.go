// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/naming"
)

// generateName is what the names of the set's VMIs begin with. Source: KubeVirt's getVirtualMachineBaseName.
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

// names gives out names for new VMIs: the first ones of the set's own sequence that nothing has. Whoever looks at the
// same VMIs gets the same names, so that of two reconciliations at the same time, or of one that came too late, the API server
// takes only the first.
type names struct {
	mu     sync.Mutex
	prefix string
	uid    types.UID
	next   uint64
	taken  map[string]bool
}

func newNames(set *v1.VirtualMachineInstanceReplicaSet) *names {
	prefix := generateName(set)
	return &names{prefix: prefix[:min(len(prefix), naming.PrefixLength)], uid: set.UID, taken: map[string]bool{}}
}

// take returns a name and gives it to nobody else.
func (n *names) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		name := n.prefix + naming.Suffix(n.uid, n.next)
		n.next++
		if !n.taken[name] {
			n.taken[name] = true
			return name
		}
	}
}
