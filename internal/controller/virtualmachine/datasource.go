// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// dataSourceKind is the only kind that a DataVolume's sourceRef can have.
const dataSourceKind = "DataSource"

// defaultAccount is the ServiceAccount of a VM that names none.
const defaultAccount = "default"

// readDataSource reads the DataSource that a sourceRef names, or returns nil if it names none.
func (s *Scope) readDataSource(ctx context.Context, ref *cdiv1beta1.DataVolumeSourceRef) (*cdi.DataSource, error) {
	if ref == nil || ref.Kind != dataSourceKind {
		return nil, nil
	}
	key := client.ObjectKey{Namespace: s.VM.Namespace, Name: ref.Name}
	if ref.Namespace != nil && *ref.Namespace != "" {
		key.Namespace = *ref.Namespace
	}
	found := &cdi.DataSource{}
	if err := s.APIReader.Get(ctx, key, found); err != nil {
		return nil, s.conceal(ctx, key.Namespace, fmt.Errorf("get DataSource %s: %w", key, err))
	}
	return found, nil
}

// unauthorizedError is the error of a source in another namespace that the VM's ServiceAccount may not copy. It is the
// same whether the source exists or not. The namespace is the one that the VM names: a DataSource there may refer to
// others.
type unauthorizedError struct{ namespace string }

func (e *unauthorizedError) Error() string {
	return "insufficient permissions in clone source namespace " + e.namespace
}

// conceal returns an error about a namespace: an unauthorizedError if something is missing there that the VM's
// ServiceAccount could not copy.
func (s *Scope) conceal(ctx context.Context, namespace string, err error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	allowed, failed := s.mayCopy(ctx,
		&cdiv1beta1.DataVolumeSource{PVC: &cdiv1beta1.DataVolumeSourcePVC{Namespace: namespace}})
	switch {
	case failed != nil:
		return failed
	case !allowed:
		return &unauthorizedError{namespace}
	}
	return err
}

// namedNamespace returns the namespace that the VM names for a source: that of the DataSource if there is one, or else
// that of the source.
func (s *Scope) namedNamespace(named *cdi.DataSource, source *cdiv1beta1.DataVolumeSource) string {
	if named != nil && named.Namespace != s.VM.Namespace {
		return named.Namespace
	}
	namespace, _ := namespaceAndName(source)
	return namespace
}

// cloneSource returns the claim or snapshot from which a DataVolume is cloned, with its namespace, or nil if it is not
// a clone. named is the DataSource of its sourceRef, or nil.
func (s *Scope) cloneSource(
	spec *cdiv1beta1.DataVolumeSpec, named *cdi.DataSource,
) (*cdiv1beta1.DataVolumeSource, error) {
	namespace, source := s.VM.Namespace, spec.Source
	if named != nil {
		namespace = named.Namespace
		from := named.Spec.Source
		if from.DataSource != nil {
			// The importer resolves a DataSource that references another one.
			from = named.Status.Source
		}
		if from.PVC == nil && from.Snapshot == nil {
			return nil, fmt.Errorf("DataSource %s has no source yet: %w", client.ObjectKeyFromObject(named),
				apierrors.NewNotFound(cdi.GroupVersion.WithResource("datasources").GroupResource(), named.Name))
		}
		source = &cdiv1beta1.DataVolumeSource{PVC: from.PVC, Snapshot: from.Snapshot}
	}
	switch {
	case source == nil:
		return nil, nil
	case source.PVC != nil:
		source = source.DeepCopy()
		if source.PVC.Namespace == "" {
			source.PVC.Namespace = namespace
		}
	case source.Snapshot != nil:
		source = source.DeepCopy()
		if source.Snapshot.Namespace == "" {
			source.Snapshot.Namespace = namespace
		}
	default:
		return nil, nil
	}
	return source, nil
}

// authorizeClone reports whether the VM's ServiceAccount may clone the source of a DataVolume; if not, it sets the
// failure. named is the DataSource that the VM names, or nil. The importer checks the same permissions, but of the
// DataVolume's creator, which is virt-controller and may clone everything. The annotations that skip the importer's
// check do not skip this one. Source: kubevirt/containerized-data-importer-api pkg/apis/core/v1beta1,
// authorize_utils.go.
func (s *Scope) authorizeClone(ctx context.Context, dv *cdi.DataVolume, named *cdi.DataSource) (bool, error) {
	if dv.Spec.SourceRef != nil {
		s.failProvision(ReasonFailedDataVolumeCreate, fmt.Errorf("sourceRef of kind %s is not supported, use %s",
			dv.Spec.SourceRef.Kind, dataSourceKind), "Error creating DataVolume "+dv.Name+": %v")
		return false, nil
	}
	source := dv.Spec.Source
	if source == nil || source.PVC == nil && source.Snapshot == nil {
		return true, nil
	}
	allowed, err := s.mayCopy(ctx, source)
	if err != nil {
		return false, err
	}
	if allowed {
		// After the authorization: the event reveals whether a claim exists.
		return true, s.warnOfMissingSource(ctx, dv)
	}
	s.refuseClone(dv.Name, &unauthorizedError{s.namedNamespace(named, source)})
	return false, nil
}

// refuseClone sets the failure of a DataVolume whose source the VM's ServiceAccount may not clone.
func (s *Scope) refuseClone(name string, err *unauthorizedError) {
	user := serviceaccount.MakeUsername(s.VM.Namespace, s.account())
	s.failProvision(ReasonUnauthorizedDataVolume,
		fmt.Errorf("not authorized to create DataVolume: User %s has %w", user, err),
		"Not authorized to create DataVolume "+name+": %v")
	s.RequeueAfter = outcome.Sooner(s.RequeueAfter, s.importRetry())
}

// namespaceAndName returns those of the claim or snapshot of a source.
func namespaceAndName(source *cdiv1beta1.DataVolumeSource) (namespace, name string) {
	if source.PVC != nil {
		return source.PVC.Namespace, source.PVC.Name
	}
	return source.Snapshot.Namespace, source.Snapshot.Name
}

// mayCopy reports whether the VM's ServiceAccount may copy a claim or a snapshot. It may copy those of its own
// namespace.
func (s *Scope) mayCopy(ctx context.Context, source *cdiv1beta1.DataVolumeSource) (bool, error) {
	namespace, name := namespaceAndName(source)
	if namespace == s.VM.Namespace {
		return true, nil
	}
	anyOf := [][]authorizationv1.ResourceAttributes{{{Group: cdi.GroupVersion.Group, Resource: "datavolumes",
		Subresource: "source"}}}
	if source.PVC != nil {
		anyOf = append(anyOf, []authorizationv1.ResourceAttributes{{Resource: "pods"}})
	} else {
		anyOf = append(anyOf, []authorizationv1.ResourceAttributes{{Resource: "pods"}, {Resource: "pvcs"}})
	}
	for _, allOf := range anyOf {
		if allowed, err := s.mayCreate(ctx, namespace, name, allOf); err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

// mayCreate reports whether the VM's ServiceAccount may create all of the given resources.
func (s *Scope) mayCreate(
	ctx context.Context, namespace, name string, what []authorizationv1.ResourceAttributes,
) (bool, error) {
	for _, resource := range what {
		resource.Namespace, resource.Name, resource.Verb = namespace, name, "create"
		account := s.account()
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               serviceaccount.MakeUsername(s.VM.Namespace, account),
			Groups:             append(serviceaccount.MakeGroupNames(s.VM.Namespace), "system:authenticated"),
			ResourceAttributes: &resource,
		}}
		if err := s.Client.Create(ctx, review); err != nil {
			return false, fmt.Errorf("check the rights of ServiceAccount %s in namespace %s: %w", account, namespace, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// account returns the ServiceAccount of the VM's launcher Pod: the template's, that of a volume, or the namespace's
// default.
func (s *Scope) account() string {
	if name := s.VM.Spec.Template.Spec.ServiceAccountName; name != "" {
		return name
	}
	for i := range s.VM.Spec.Template.Spec.Volumes {
		if account := s.VM.Spec.Template.Spec.Volumes[i].ServiceAccount; account != nil {
			return account.ServiceAccountName
		}
	}
	return defaultAccount
}

// warnOfMissingSource records an event if the claim to clone does not exist. The importer accepts the DataVolume and
// waits for it.
func (s *Scope) warnOfMissingSource(ctx context.Context, dv *cdi.DataVolume) error {
	source := dv.Spec.Source.PVC
	if source == nil {
		return nil
	}
	key := client.ObjectKey{Namespace: source.Namespace, Name: source.Name}
	claim, err := kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.Client)
	if err == nil && claim == nil {
		s.Recorder.Eventf(s.VM, nil, corev1.EventTypeWarning, ReasonSourcePVCNotAvailable, actionProvision,
			"Source PVC %s not available: Target PVC %s will remain unpopulated until source is created", source.Name, dv.Name)
	}
	return err
}

const (
	// architectureLabel of a DataSource is the architecture of the guest on the disk. Source: kubevirt/kubevirt
	// pkg/defaults, setDefaultArchitectureFromDataSource.
	architectureLabel = "template.kubevirt.io/architecture"
	// SourceArchitectureAnnotation of a DataVolume created from a template is the architecture that its DataSource had at
	// that time.
	SourceArchitectureAnnotation = "kubevirt.io/source-architecture"
)

// knownArchitectures are the values of architectureLabel that are used. Others are ignored.
var knownArchitectures = []string{clusterconfig.ArchAMD64, clusterconfig.ArchARM64, clusterconfig.ArchS390X}

// architectureOf returns the architecture of a DataSource, or of the DataSource that it references, or "". A reference
// to another namespace is ignored: the result would reveal what exists there. The importer refuses such a reference.
func (s *Scope) architectureOf(ctx context.Context, source *cdi.DataSource) (string, error) {
	if ref := source.Spec.Source.DataSource; ref != nil {
		key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
		if key.Namespace == "" {
			key.Namespace = source.Namespace
		}
		if key.Namespace != source.Namespace {
			return "", nil
		}
		source = &cdi.DataSource{}
		if err := s.APIReader.Get(ctx, key, source); err != nil {
			return "", fmt.Errorf("get DataSource %s: %w", key, err)
		}
	}
	if named := source.Labels[architectureLabel]; slices.Contains(knownArchitectures, named) {
		return named, nil
	}
	return "", nil
}

// architecture returns the architecture of the VM's next instance: the one in the expanded template, or else the first
// one that the DataSource of a disk has. Empty means the cluster's default.
func (s *Scope) architecture(template *v1.VirtualMachineInstanceTemplateSpec) string {
	if named := template.Spec.Architecture; named != "" {
		return named
	}
	for i := range s.VM.Spec.DataVolumeTemplates {
		dv := s.dataVolumes[s.VM.Spec.DataVolumeTemplates[i].Name]
		if dv == nil {
			continue
		}
		if named := dv.Annotations[SourceArchitectureAnnotation]; slices.Contains(knownArchitectures, named) {
			return named
		}
	}
	return ""
}
