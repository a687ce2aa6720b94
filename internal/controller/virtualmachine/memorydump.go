// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/memorydump"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// dumpMemory does the next step of a memory dump that a user has requested.
func dumpMemory(ctx context.Context, s *Scope) error {
	request := s.Status.MemoryDumpRequest
	if request == nil || s.VM.DeletionTimestamp != nil || s.deleted {
		return nil
	}
	o := memorydump.Observed{Now: s.Now, Request: request}
	if alive(s) {
		o.VMI = s.VMI
	}
	var err error
	key := client.ObjectKey{Namespace: s.VM.Namespace, Name: request.ClaimName}
	if o.Claim, err = kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.Client); err != nil {
		return err
	}
	step := memorydump.Next(o)
	if err := s.applyDump(ctx, o.Claim, step); err != nil {
		return err
	}
	s.Status.MemoryDumpRequest = step.Request
	return nil
}

// applyDump changes the VMI and the claim.
func (s *Scope) applyDump(ctx context.Context, claim *corev1.PersistentVolumeClaim, step memorydump.Step) error {
	if step.AddVolume != nil || step.RemoveVolume != "" {
		err := s.patchVMI(ctx, func(vmi *v1.VirtualMachineInstance) {
			if step.AddVolume != nil {
				vmi.Spec.UtilityVolumes = append(vmi.Spec.UtilityVolumes, *step.AddVolume)
			}
			vmi.Spec.UtilityVolumes = slices.DeleteFunc(vmi.Spec.UtilityVolumes,
				func(u v1.UtilityVolume) bool { return u.Name == step.RemoveVolume })
		})
		if err != nil {
			return err
		}
	}
	if step.Annotation == "" || claim == nil || claim.Annotations[v1.PVCMemoryDumpAnnotation] == step.Annotation {
		return nil
	}
	_, err := optimistic.Patch(ctx, s.Client, claim, func(c *corev1.PersistentVolumeClaim) {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[v1.PVCMemoryDumpAnnotation] = step.Annotation
	})
	if err != nil {
		return fmt.Errorf("annotate PersistentVolumeClaim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return nil
}
