// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
)

// ExporterPods reads the Pods of exporters from the suite's API server. It triggers no reconciliation.
type ExporterPods struct{ client.Reader }

// Source returns nil.
func (ExporterPods) Source(func(context.Context, *corev1.Pod) []ctrl.Request) source.Source {
	return nil
}

// DescribeExport returns phase and conditions of an export, which must exist.
func DescribeExport(of *exportv1.VirtualMachineExport) string {
	GinkgoHelper()
	ExpectExists(of)
	if of.Status == nil {
		return "no status"
	}
	text := string(of.Status.Phase)
	for _, kind := range []exportv1.ConditionType{
		exportv1.ConditionReady, exportv1.ConditionPVC, exportv1.ConditionVolumesCreated,
	} {
		if c := conditions.Find(of.Status.Conditions, kind); c != nil {
			text += "; " + string(kind) + "=" + string(c.Status) + " " + c.Reason
		}
	}
	return text
}
