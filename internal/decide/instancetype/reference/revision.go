// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reference

import (
	"errors"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/quantity"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

// RevisionName returns the name of the ControllerRevision with the version of an object that a VM uses. The format is
// KubeVirt's.
func RevisionName(vm *v1.VirtualMachine, object client.Object) string {
	return fmt.Sprintf("%s-%s-%s-%s-%d", vm.Name, object.GetName(), instancetype.LatestVersion, object.GetUID(),
		object.GetGeneration())
}

// NewRevision returns the ControllerRevision, owned by the VM, with the version of an object that a VM uses. Its data
// are the object without the metadata that are of no use in a copy.
func NewRevision(vm *v1.VirtualMachine, object client.Object) (*appsv1.ControllerRevision, error) {
	kind, err := KindOf(object)
	if err != nil {
		return nil, err
	}
	stored, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", object)
	}
	stored.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind.Name))
	stored.SetLabels(nil)
	stored.SetAnnotations(nil)
	stored.SetFinalizers(nil)
	stored.SetOwnerReferences(nil)
	stored.SetManagedFields(nil)
	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: RevisionName(vm, object), Namespace: vm.Namespace,
			Labels: map[string]string{
				instancetype.ControllerRevisionObjectGenerationLabel: strconv.FormatInt(object.GetGeneration(), 10),
				instancetype.ControllerRevisionObjectKindLabel:       kind.Name,
				instancetype.ControllerRevisionObjectNameLabel:       podspec.LabelValue(object.GetName()),
				instancetype.ControllerRevisionObjectUIDLabel:        string(object.GetUID()),
				instancetype.ControllerRevisionObjectVersionLabel:    instancetype.LatestVersion,
				// KubeVirt's revisions do not have this label, which selects the revisions that are in the cache.
				v1.CreatedByLabel: string(vm.UID),
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)},
		},
	}
	if err := revisiondata.SetData(revision, stored); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", kind.Name, object.GetName(), err)
	}
	return revision, nil
}

// IsRevision reports whether the labels of a ControllerRevision are those of one with an instance type or a preference.
func IsRevision(labels map[string]string) bool {
	return labels[instancetype.ControllerRevisionObjectNameLabel] != ""
}

// IsLatest reports whether the labels of a ControllerRevision are those that this version of NewRevision sets.
// Revisions of earlier versions of KubeVirt have no version.
func IsLatest(labels map[string]string) bool {
	return labels[instancetype.ControllerRevisionObjectVersionLabel] == instancetype.LatestVersion
}

// ErrUnusable is the error of a ControllerRevision without an instance type or a preference of a supported version.
var ErrUnusable = errors.New("failed to decode object in ControllerRevision")

// Decode returns the instance type or preference in a ControllerRevision. Alpha versions of the API, which KubeVirt
// stored in another format, are not supported. All errors are ErrUnusable.
func (c *Class) Decode(revision *appsv1.ControllerRevision) (client.Object, error) {
	fail := func(reason error) (client.Object, error) {
		return nil, fmt.Errorf("%w: %s/%s: %w", ErrUnusable, revision.Namespace, revision.Name, reason)
	}
	meta := metav1.TypeMeta{}
	if err := quantity.Unmarshal(revision.Data, &meta); err != nil {
		return fail(err)
	}
	if meta.APIVersion != v1beta1.GroupVersion.String() {
		return fail(fmt.Errorf("apiVersion %q is not supported, only %s", meta.APIVersion, v1beta1.GroupVersion))
	}
	for _, kind := range []Kind{c.Cluster, c.Namespaced} {
		if kind.Name != meta.Kind {
			continue
		}
		object := kind.New()
		if err := quantity.Unmarshal(revision.Data, object); err != nil {
			return fail(err)
		}
		return object, nil
	}
	return fail(fmt.Errorf("it has a %s, spec.%s needs a %s or a %s", meta.Kind, c.Field, c.Cluster.Name,
		c.Namespaced.Name))
}

// SameSpec reports whether two objects have equal specs. Objects of different classes never do.
func SameSpec(a, b client.Object) bool {
	return equality.Semantic.DeepEqual(InstancetypeSpec(a), InstancetypeSpec(b)) &&
		equality.Semantic.DeepEqual(PreferenceSpec(a), PreferenceSpec(b))
}
