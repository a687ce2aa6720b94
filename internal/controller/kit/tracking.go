// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// SelectsForTracking reports whether the configuration selects a VM for the tracking of changed blocks, whether the
// feature gate is on or not. It reads the VM's namespace from the cache, only if the namespace's labels decide.
func SelectsForTracking(
	ctx context.Context, cached client.Reader, selected clusterconfig.TrackedVMs, vm *v1.VirtualMachine,
) (bool, error) {
	if selected.SelectsVM(vm.Labels) || selected.Namespaces == nil {
		return selected.SelectsVM(vm.Labels), nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := cached.Get(ctx, client.ObjectKey{Name: vm.Namespace}, namespace); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", vm.Namespace, err)
	}
	return selected.SelectsNamespace(namespace.Labels), nil
}
