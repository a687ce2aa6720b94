// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ObjectGraphNode is the response of objectgraph: an object, and those that it needs, for backup tools.
// +kubebuilder:object:root=true
type ObjectGraphNode struct {
	metav1.TypeMeta `json:",inline"`
	// objectReference names the object.
	ObjectReference corev1.TypedObjectReference `json:"objectReference"`
	// labels are the role of the object for the VM, such as storage or network.
	Labels map[string]string `json:"labels,omitempty"`
	// optional is true if the VM starts without the object.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// children are the objects that this one needs.
	// +listType=atomic
	Children []ObjectGraphNode `json:"children,omitempty"`
}

// ObjectGraphOptions is the body of objectgraph.
type ObjectGraphOptions struct {
	// includeOptionalNodes also returns what the VM starts without. Default: true.
	IncludeOptionalNodes *bool `json:"includeOptionalNodes,omitempty"`
	// labelSelector leaves out nodes whose labels do not match. Default: all nodes.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}
