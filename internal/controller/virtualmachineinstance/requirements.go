// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonNoKubeVirt is the reason while the cluster has no KubeVirt object. KubeVirt does not have it: without the
// object it serves no VMs.
const ReasonNoKubeVirt = "KubeVirtNotFound"

// requireKubeVirt delays a VMI until there is a KubeVirt object. Without it no node has an agent, and the Pod could not
// be rendered with its configuration.
func (s *scope) requireKubeVirt(_ context.Context) error {
	if !s.preparing() || s.pod != nil || s.config.KubeVirt != "" {
		return nil
	}
	s.problem = &problem{
		reason: ReasonNoKubeVirt,
		message: fmt.Sprintf("There is no KubeVirt object in namespace %s, so that no node can run VMs: "+
			"create one, and the VM starts", s.namespace),
		unschedulable: true,
	}
	return nil
}

// refuseUnimplemented delays a VMI that needs what is not implemented, or what is impossible. Admission accepts it with
// a warning, as KubeVirt would. The VMI waits rather than fails: it starts with a version that implements the field.
func (s *scope) refuseUnimplemented(_ context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	spec := field.NewPath("spec")
	refused := specsupport.Refusals(specsupport.UnimplementedInVMI(spec, &s.vmi.Spec))
	refused = append(refused,
		specsupport.Refusals(specsupport.UnimplementedInAnnotations(field.NewPath("metadata"), s.vmi.Annotations))...)
	if len(refused) > 0 {
		s.problem = &problem{reason: specsupport.ReasonNotImplemented, message: specsupport.JoinErrors(refused).Error()}
		return nil
	}
	if wrong := specsupport.ImpossibleInVMI(spec, &s.vmi.Spec); len(wrong) > 0 {
		s.problem = &problem{reason: specsupport.ReasonImpossible, message: specsupport.JoinErrors(wrong).Error()}
	}
	return nil
}

// readRequiredLimits finds out which limits the Pod must have although the VMI does not set them.
func (s *scope) readRequiredLimits(ctx context.Context) error {
	if !s.preparing() || s.pod != nil || s.problem != nil {
		return nil
	}
	return SetRequiredLimits(ctx, s.client, s.apiReader, s.vmi, s.config.AutoCPULimitNamespaces, &s.podConfig)
}

// SetRequiredLimits sets in the configuration of a launcher Pod the limits that it must have although its VMI does not
// set them. A quota refuses Pods without the limits that it counts. A CPU limit is also required if autoCPU selects the
// namespace. quotas reads from a cache. apiReader reads the namespace, if its labels matter.
func SetRequiredLimits(
	ctx context.Context, quotas, apiReader client.Reader, vmi *v1.VirtualMachineInstance, autoCPU labels.Selector,
	config *podspec.Config,
) error {
	list := &corev1.ResourceQuotaList{}
	if err := quotas.List(ctx, list, client.InNamespace(vmi.Namespace)); err != nil {
		return fmt.Errorf("list the quotas of namespace %s: %w", vmi.Namespace, err)
	}
	for i := range list.Items {
		_, cpu := list.Items[i].Spec.Hard[corev1.ResourceLimitsCPU]
		_, memory := list.Items[i].Spec.Hard[corev1.ResourceLimitsMemory]
		config.LimitCPU, config.LimitMemory = config.LimitCPU || cpu, config.LimitMemory || memory
	}
	if !config.LimitMemory && (config.LimitCPU || autoCPU == nil) {
		return nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := apiReader.Get(ctx, client.ObjectKey{Name: vmi.Namespace}, namespace); err != nil {
		return fmt.Errorf("get namespace %s: %w", vmi.Namespace, err)
	}
	config.LimitCPU = config.LimitCPU || autoCPU != nil && autoCPU.Matches(labels.Set(namespace.Labels))
	config.MemoryLimitRatio = memoryLimitRatio(namespace.Labels)
	return nil
}

// memoryLimitRatio is the value of the namespace's label, or 0. As in KubeVirt, an invalid value is ignored.
func memoryLimitRatio(labels map[string]string) float64 {
	ratio, err := strconv.ParseFloat(labels[v1.AutoMemoryLimitsRatioLabel], 64)
	if err != nil || math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio < 1 || ratio > maxMemoryLimitRatio {
		return 0
	}
	return ratio
}

// maxMemoryLimitRatio keeps a limit within the range of a quantity.
const maxMemoryLimitRatio = 1 << 10

// ReasonFailedGuarantee is status.reason, and the reason of the event, of a VMI with dedicated CPUs whose Pod is not
// Guaranteed. KubeVirt's name.
const ReasonFailedGuarantee = "FailedGuaranteeResources"

// requireGuaranteed ends a VMI with dedicated CPUs whose Pod is not Guaranteed: the kubelet would give it shared CPUs.
// The Pod is rendered as Guaranteed, but a webhook can change that, for instance by adding a container.
func (s *scope) requireGuaranteed(ctx context.Context) error {
	if s.pod == nil || !s.vmi.IsCPUDedicated() || s.deleting() {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Ended && s.vmi.Status.Reason == ReasonFailedGuarantee:
		// The guest never ran, so that nothing in the Pod is worth keeping.
		return s.deletePod(ctx)
	case s.stage() != vmistatus.Preparing || !podstate.Running(s.pod):
		return nil
	}
	// The API server sets the class when the Pod is created.
	if class := s.pod.Status.QOSClass; class != "" && class != corev1.PodQOSGuaranteed {
		s.final = &finalState{
			phase: v1.Failed, reason: ReasonFailedGuarantee,
			message: fmt.Sprintf("The launcher Pod %s is %s and not Guaranteed, so that it gets no CPUs of its own: "+
				"each of its containers needs requests and limits that are equal, for CPU and memory.", s.pod.Name, class),
		}
	}
	return nil
}
