// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pool

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// nodeOperators are the operators of requirements of nodes as those of labels.
var nodeOperators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// NodeSelector returns the selector of all requirements, for a node selector as a set of labels.
func NodeSelector(requirements []corev1.NodeSelectorRequirement) (labels.Selector, error) {
	selector := labels.NewSelector()
	for i := range requirements {
		r := &requirements[i]
		operator, ok := nodeOperators[r.Operator]
		if !ok {
			return nil, fmt.Errorf("%q is not a valid operator", r.Operator)
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			return nil, err
		}
		selector = selector.Add(*requirement)
	}
	return selector, nil
}
