// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// How the API server makes a name from generateName: as many characters of this alphabet after a prefix of at most that
// length. Ours look the same. Source: k8s.io/apiserver pkg/storage/names, k8s.io/apimachinery pkg/util/rand.
const (
	suffixLength = 5
	prefixLength = 63 - suffixLength
	alphabet     = "bcdfghjklmnpqrstvwxz2456789"
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
// same VMIs gets the same names, so that of two looks at the same time, or of one that came too late, the API server
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
	return &names{prefix: prefix[:min(len(prefix), prefixLength)], uid: set.UID, taken: map[string]bool{}}
}

// take returns a name and gives it to nobody else.
func (n *names) take() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		name := n.prefix + suffix(n.uid, n.next)
		n.next++
		if !n.taken[name] {
			n.taken[name] = true
			return name
		}
	}
}

// suffix is the end of the name at one place of the sequence of a set.
func suffix(uid types.UID, place uint64) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(uid), place))
	number := binary.BigEndian.Uint64(sum[:])
	out := make([]byte, suffixLength)
	for i := range out {
		out[i] = alphabet[number%uint64(len(alphabet))]
		number /= uint64(len(alphabet))
	}
	return string(out)
}
