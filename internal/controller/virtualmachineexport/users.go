// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/controller/virtualmachinesnapshot"
	"github.com/vireo-project/vireo/internal/export/plan"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// podPage is how many Pods are read at a time. A Pod may be larger than a megabyte, and a namespace may have any number of Pods.
const podPage = 50

// onNode selects the Pods that may use a volume: they have a node, and have not ended.
var onNode = client.MatchingFieldsSelector{Selector: fields.AndSelectors(
	fields.OneTermNotEqualSelector("spec.nodeName", ""),
	podstate.NotTerminal,
)}

// readUsers reads whether other Pods use a claim of the source, for which the export would have to wait. It stops at the first such claim,
// and reads no Pods if the export waits for something else. Launcher Pods are in the cache; those without a node count as well, because
// their guests are about to start.
func (s *scope) readUsers(ctx context.Context, w *plan.World) error {
	contested := w.Contested()
	for _, name := range contested {
		launchers := &corev1.PodList{}
		err := s.Client.List(ctx, launchers, client.InNamespace(s.export.Namespace), client.UnsafeDisableDeepCopy,
			client.MatchingFields{virtualmachinesnapshot.PodClaimIndex: name})
		if err != nil {
			return fmt.Errorf("list the launcher Pods that use PersistentVolumeClaim %s/%s: %w", s.export.Namespace, name, err)
		}
		if slices.ContainsFunc(launchers.Items, isUser) {
			w.Used[name] = true
			return nil
		}
	}
	if len(contested) == 0 {
		return nil
	}
	return s.readOtherUsers(ctx, w, contested)
}

// isUser reports whether a Pod excludes an export. The Pods of exporters do not, because they only read.
func isUser(pod corev1.Pod) bool { return !isExport(metav1.GetControllerOf(&pod)) }

// readOtherUsers reads from the API server which of the claims other Pods use. The cache contains only launcher Pods.
func (s *scope) readOtherUsers(ctx context.Context, w *plan.World, contested []string) error {
	claims := make(map[string]bool, len(contested))
	for _, name := range contested {
		claims[name] = true
	}
	for next := ""; ; {
		page := &corev1.PodList{}
		err := s.APIReader.List(ctx, page, client.InNamespace(s.export.Namespace), onNode, client.Limit(podPage), client.Continue(next))
		if err != nil {
			return fmt.Errorf("list the Pods of namespace %s: %w", s.export.Namespace, err)
		}
		for i := range page.Items {
			pod := &page.Items[i]
			if !isUser(*pod) {
				continue
			}
			for j := range pod.Spec.Volumes {
				if claim := pod.Spec.Volumes[j].PersistentVolumeClaim; claim != nil && claims[claim.ClaimName] {
					w.Used[claim.ClaimName] = true
				}
			}
		}
		if next = page.Continue; next == "" || len(w.Used) > 0 {
			return nil
		}
	}
}
