// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/podspec"
)

// maxRetained is how many ended migrations of a VMI are kept. KubeVirt's value.
const maxRetained = 5

// addFinalizer adds the finalizer, and the label by which the migrations of a VMI are selected.
func addFinalizer(ctx context.Context, s *Scope) error {
	if s.deleting() {
		return nil
	}
	return kit.Patch(ctx, s.Client, &s.Migration, func(m *v1.VirtualMachineInstanceMigration) {
		controllerutil.AddFinalizer(m, v1.VirtualMachineInstanceMigrationFinalizer)
		if _, labeled := m.Labels[v1.MigrationSelectorLabel]; !labeled {
			metav1.SetMetaDataLabel(&m.ObjectMeta, v1.MigrationSelectorLabel, podspec.LabelValue(m.Spec.VMIName))
		}
	})
}

// removeFinalizer removes the finalizer.
func (s *Scope) removeFinalizer(ctx context.Context) error {
	return kit.RemoveFinalizer(ctx, s.Client, &s.Migration, v1.VirtualMachineInstanceMigrationFinalizer)
}

// deleteWithoutVMI deletes a migration whose VMI was deleted, and with it the Pods.
func (s *Scope) deleteWithoutVMI(ctx context.Context) error {
	if !s.passed(v1.MigrationPreparingTarget) {
		// The claims of an assigned migration are cleaned up before the VMI is deleted.
		if err := removeStates(ctx, s.Client, client.ObjectKeyFromObject(s.Migration), nil); err != nil {
			return err
		}
	}
	if err := s.removeFinalizer(ctx); err != nil || s.deleting() {
		return err
	}
	return kit.Delete(ctx, s.Client, s.Migration)
}

// deleteOld deletes the oldest ended migrations of the VMI, if there are more than maxRetained.
func (s *Scope) deleteOld(ctx context.Context) error {
	done := slices.DeleteFunc(slices.Clone(s.Siblings), func(m *v1.VirtualMachineInstanceMigration) bool {
		return m.DeletionTimestamp != nil || !m.IsFinal() && m.UID != s.Migration.UID
	})
	slices.SortFunc(done, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, m := range done[:max(0, len(done)-maxRetained)] {
		if err := kit.Delete(ctx, s.Client, m); err != nil {
			return err
		}
	}
	return nil
}

// RemoveOrphans deletes the Pods and claims of a migration whose finalizer was removed by another client. The VMI's
// reconciler deletes those to which the VMI's status refers.
func RemoveOrphans(ctx context.Context, c client.Client, apiReader client.Reader, migration client.ObjectKey) error {
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace(migration.Namespace),
		client.HasLabels{v1.MigrationJobLabel}); err != nil {
		return fmt.Errorf("list the Pods of migrations in namespace %s: %w", migration.Namespace, err)
	}
	if err := removeOrphanedStates(ctx, c, apiReader, migration); err != nil {
		return err
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return pod.Annotations[v1.MigrationJobNameAnnotation] != migration.Name || pod.DeletionTimestamp != nil
	})
	if len(pods.Items) == 0 {
		return nil
	}
	// The cache may be stale.
	if err := apiReader.Get(ctx, migration, &v1.VirtualMachineInstanceMigration{}); client.IgnoreNotFound(err) != nil ||
		err == nil {
		return err
	}
	for i := range pods.Items {
		if err := removeOrphan(ctx, c, apiReader, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func removeOrphan(ctx context.Context, c client.Client, apiReader client.Reader, pod *corev1.Pod) error {
	owner := podspec.Owner(pod)
	if owner == nil {
		return nil
	}
	vmi, key := &v1.VirtualMachineInstance{}, client.ObjectKey{Namespace: pod.Namespace, Name: owner.Name}
	if err := apiReader.Get(ctx, key, vmi); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("get VirtualMachineInstance %s: %w", key, err)
		}
		return nil // The garbage collector deletes it.
	}
	if m := vmi.Status.MigrationState; !podspec.IsOf(pod, vmi) ||
		pod.Name != podspec.TargetPodName(vmi, types.UID(pod.Labels[v1.MigrationJobLabel])) ||
		m != nil && (m.SourcePod == pod.Name || m.TargetPod == pod.Name) {
		return nil
	}
	return kit.Delete(ctx, c, pod)
}
