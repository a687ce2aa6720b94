// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
)

// selected returns the members that a policy's selectors match, or all of them without a policy, in the order of its
// sort policy. The order is the same in each reconciliation.
func selected(members []*member, policy *poolv1.VirtualMachinePoolSelectionPolicy) ([]*member, error) {
	if policy == nil {
		policy = &poolv1.VirtualMachinePoolSelectionPolicy{}
	}
	matches, err := matcher(policy.Selectors)
	if err != nil {
		return nil, err
	}
	picked := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return !matches(m) })
	slices.SortFunc(picked, sorter(ptr.Deref(policy.SortPolicy, poolv1.VirtualMachinePoolSortPolicyRandom)))
	return picked, nil
}

// sorter returns the comparison of a sort policy. Random puts VMs that are not ready first, and the others in the order
// of a hash.
func sorter(policy poolv1.VirtualMachinePoolSortPolicy) func(a, b *member) int {
	return func(a, b *member) int {
		var order int
		switch age := a.vm.CreationTimestamp.Compare(b.vm.CreationTimestamp.Time); policy {
		case poolv1.VirtualMachinePoolSortPolicyAscendingOrder:
		case poolv1.VirtualMachinePoolSortPolicyDescendingOrder:
			order = cmp.Compare(b.ordinal, a.ordinal)
		case poolv1.VirtualMachinePoolSortPolicyNewest:
			order = cmp.Or(-age, cmp.Compare(b.ordinal, a.ordinal))
		case poolv1.VirtualMachinePoolSortPolicyOldest:
			order = age
		default:
			order = cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(hash(a), hash(b)))
		}
		return cmp.Or(order, cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.vm.Name, b.vm.Name))
	}
}

func rank(m *member) int {
	if m.ready() {
		return 1
	}
	return 0
}

func hash(m *member) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(m.vm.UID)) // never fails
	return h.Sum32()
}

// matcher returns a predicate for the selectors, which apply to the labels and to the node selector of the VM's
// template.
func matcher(selectors *poolv1.VirtualMachinePoolSelectors) (func(*member) bool, error) {
	byLabel, byNode := labels.Everything(), labels.Everything()
	if selectors != nil && selectors.LabelSelector != nil {
		var err error
		if byLabel, err = metav1.LabelSelectorAsSelector(selectors.LabelSelector); err != nil {
			return nil, fmt.Errorf("selectionPolicy.selectors.labelSelector: %w", err)
		}
	}
	if selectors != nil && selectors.NodeSelectorRequirementMatcher != nil {
		var err error
		if byNode, err = poolapi.NodeSelector(*selectors.NodeSelectorRequirementMatcher); err != nil {
			return nil, fmt.Errorf("selectionPolicy.selectors.nodeSelectorRequirementMatcher: %w", err)
		}
	}
	return func(m *member) bool {
		template := m.vm.Spec.Template
		return template != nil && byLabel.Matches(labels.Set(template.ObjectMeta.Labels)) &&
			byNode.Matches(labels.Set(template.Spec.NodeSelector))
	}, nil
}
