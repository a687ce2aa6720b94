// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kit

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// Read reads an object from the first of the readers that has it, such as the cache, which may be stale, and then the
// API server. It returns nil if none has it. The object is overwritten.
func Read[T client.Object](ctx context.Context, key client.ObjectKey, object T, readers ...client.Reader) (T, error) {
	var none T
	for _, from := range readers {
		err := from.Get(ctx, key, object)
		switch {
		case err == nil:
			return object, nil
		case !apierrors.IsNotFound(err):
			return none, fmt.Errorf("get %s %s: %w", kindOf(object), key, err)
		}
	}
	return none, nil
}

// Run reads the object of a request from the cache and reconciles it. An object that is gone is not reconciled.
func Run[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, cache client.Reader, key client.ObjectKey, object *P, reconcile func(context.Context) error,
) (err error) {
	if *object, err = Read(ctx, key, P(new(T)), cache); err != nil || *object == nil {
		return err
	}
	return reconcile(ctx)
}

// Now returns the time of a clock, or of the system's if the clock is nil.
func Now(c clock.PassiveClock) time.Time {
	if c == nil {
		c = clock.RealClock{}
	}
	return c.Now()
}

// PageSize is how many objects of a namespace are read from the API server at a time. A tenant decides how many there
// are, and how large: the metadata of an object may have MetadataBytes, most of it annotations, and a whole one
// ObjectBytes, of which a page has fewer.
const (
	PageSize      = 40
	MetadataBytes = 300 << 10
	WholePageSize = 20
	ObjectBytes   = 3 << 19
)

// EachMetadata calls do for the metadata of each object of a kind in a namespace that options select, which it lists
// from the API server page by page. Only one page is in memory at a time, unless do keeps more.
func EachMetadata(
	ctx context.Context, live client.Reader, kind schema.GroupVersionKind, namespace string,
	do func(*metav1.PartialObjectMetadata), options ...client.ListOption,
) error {
	page := &metav1.PartialObjectMetadataList{}
	page.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := eachPage(ctx, live, PageSize, page, func(page *metav1.PartialObjectMetadataList) {
		for i := range page.Items {
			do(&page.Items[i])
		}
	}, append(options, client.InNamespace(namespace))...)
	if err != nil {
		return fmt.Errorf("list the metadata of %s objects of namespace %s: %w", kind.Kind, namespace, err)
	}
	return nil
}

// EachPage calls do for each page of the objects that options select, as they are on the API server. Only one page is
// in memory at a time, unless do keeps more. Use EachMetadata if the metadata suffices.
func EachPage[L client.ObjectList](ctx context.Context, live client.Reader, empty L, do func(L),
	options ...client.ListOption) error {
	return eachPage(ctx, live, WholePageSize, empty, do, options...)
}

func eachPage[L client.ObjectList](
	ctx context.Context, live client.Reader, size int64, empty L, do func(L), options ...client.ListOption,
) error {
	for next := ""; ; {
		page, _ := empty.DeepCopyObject().(L)
		if err := live.List(ctx, page,
			append(slices.Clone(options), client.Limit(size), client.Continue(next))...); err != nil {
			return err
		}
		do(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// Claims returns the claims of a namespace that the cache has, by name. They belong to the cache and must not be
// changed.
func Claims(
	ctx context.Context, cache client.Reader, namespace string,
) (map[string]*corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	if err := cache.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PersistentVolumeClaims of namespace %s: %w", namespace, err)
	}
	claims := make(map[string]*corev1.PersistentVolumeClaim, len(list.Items))
	for i := range list.Items {
		claims[list.Items[i].Name] = &list.Items[i]
	}
	return claims, nil
}

// Current returns those objects of a namespace that keep selects by their metadata, as they are on the API server. It
// lists metadata only, and reads those objects that the cache has in another version.
func Current[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, live client.Reader, kind schema.GroupVersionKind, namespace string, cached []T,
	keep func(metav1.Object) bool,
) ([]T, error) {
	versions := make(map[string]int, len(cached))
	for i := range cached {
		versions[string(P(&cached[i]).GetUID())+P(&cached[i]).GetResourceVersion()] = i
	}
	var current []T
	var changed []client.ObjectKey
	err := EachMetadata(ctx, live, kind, namespace, func(m *metav1.PartialObjectMetadata) {
		if !keep(m) {
			return
		}
		if i, known := versions[string(m.UID)+m.ResourceVersion]; known {
			current = append(current, cached[i])
			return
		}
		changed = append(changed, client.ObjectKeyFromObject(m))
	})
	if err != nil {
		return nil, err
	}
	for _, key := range changed {
		object, err := Read(ctx, key, P(new(T)), live)
		if err != nil {
			return nil, err
		}
		if object != nil && keep(object) {
			current = append(current, *object)
		}
	}
	return current, nil
}

// UnfinishedMigrations selects the migrations that have not ended, on the API server.
var UnfinishedMigrations = client.MatchingFieldsSelector{Selector: unfinished}

var unfinished = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(v1.MigrationSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(v1.MigrationFailed)),
)

// EachMigration calls do for each migration of a VMI that has not ended, as they are on the API server.
func EachMigration(
	ctx context.Context, live client.Reader, vmi client.ObjectKey, do func(*v1.VirtualMachineInstanceMigration),
) error {
	selected := client.MatchingFieldsSelector{
		Selector: fields.AndSelectors(fields.OneTermEqualSelector(VMIIndex, vmi.Name), unfinished),
	}
	err := EachPage(ctx, live, &v1.VirtualMachineInstanceMigrationList{},
		func(page *v1.VirtualMachineInstanceMigrationList) {
			for i := range page.Items {
				do(&page.Items[i])
			}
		}, client.InNamespace(vmi.Namespace), selected)
	if err != nil {
		return fmt.Errorf("list the migrations of VirtualMachineInstance %s: %w", vmi, err)
	}
	return nil
}

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

// AbandonedVMs returns the VMs that are locked for an object of this key that does not concern them, because it was
// deleted by force, and perhaps created again for another VM. The index of the cache finds VMs by the name of the
// object for which they are locked. vmOf returns the name of the VM that an object concerns.
func AbandonedVMs[T any, P interface {
	*T
	client.Object
}](
	ctx context.Context, cache, live client.Reader, index string, key client.ObjectKey, vmOf func(P) string,
) ([]v1.VirtualMachine, error) {
	vms := &v1.VirtualMachineList{}
	if err := cache.List(ctx, vms, client.InNamespace(key.Namespace), client.MatchingFields{index: key.Name}); err != nil {
		return nil, fmt.Errorf("list the VirtualMachines that are locked for %s %s: %w", kindOf(P(new(T))), key, err)
	}
	for _, reader := range []client.Reader{cache, live} { // The cache may be stale.
		if len(vms.Items) == 0 {
			break
		}
		object, err := Read(ctx, key, P(new(T)), reader)
		if err != nil {
			return nil, err
		}
		vms.Items = slices.DeleteFunc(vms.Items, func(vm v1.VirtualMachine) bool {
			return object != nil && vm.Name == vmOf(object)
		})
	}
	return vms.Items, nil
}
