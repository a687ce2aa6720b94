// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// ExporterPods reads the Pods of exporters from the suite's API server. It triggers no reconciliation.
type ExporterPods struct{ client.Reader }

// Source returns nil.
func (ExporterPods) Source(func(context.Context, *corev1.Pod) []ctrl.Request) source.Source {
	return nil
}
