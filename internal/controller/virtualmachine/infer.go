// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

// errInferenceWaits is returned while the volume from which an instance type or a preference is inferred is being
// filled: its claim gets labels from the image.
var errInferenceWaits = errors.New("the volume is not filled yet")

// inferenceError is why a volume names no instance type or preference. A matcher with the policy Ignore is dropped for
// it.
type inferenceError struct{ text string }

func (e *inferenceError) Error() string { return e.text }

// inferred returns a matcher that names an object: the given matcher if it names one, or else one with the name that
// was inferred before or is inferred now. The name is empty if the volume names no object and the matcher's policy is
// to ignore that.
func (s *Scope) inferred(
	ctx context.Context, class *reference.Class, matcher *v1.InstancetypeMatcher,
) (*v1.InstancetypeMatcher, error) {
	if matcher.InferFromVolume == "" {
		return matcher, nil
	}
	found := matcher.DeepCopy()
	if ref := class.RefOf(&s.VM.Status); class.RevisionOf(s.VM) != "" && ref != nil {
		found.Name, found.Kind = ref.Name, ref.Kind
		return found, nil
	}
	named, err := s.infer(ctx, class, matcher)
	if err != nil || named == nil {
		return found, err
	}
	return named, nil
}

// infer returns a matcher with the name and the kind that the volume of an inferring matcher has in its labels. It
// returns nil if the volume has none and the matcher's policy is to ignore that. The result is kept in the status:
// labels that change later do not affect the VM.
func (s *Scope) infer(
	ctx context.Context, class *reference.Class, matcher *v1.InstancetypeMatcher,
) (*v1.InstancetypeMatcher, error) {
	if ref := class.RefOf(&s.VM.Status); ref != nil && ref.InferFromVolume == matcher.InferFromVolume &&
		reference.Ignores(matcher) && ref.Name == "" {
		return nil, nil // It was found before that the volume names none.
	}
	labels, err := s.inferLabels(ctx, matcher.InferFromVolume, class.DefaultLabel)
	var nothing *inferenceError
	var unauthorized *unauthorizedError
	if errors.As(err, &unauthorized) {
		err = fmt.Errorf("unable to infer defaults: ServiceAccount %s has %w", s.account(), unauthorized)
	}
	switch {
	case errors.As(err, &nothing) && reference.Ignores(matcher):
		return nil, nil
	case errors.Is(err, errInferenceWaits):
		return nil, err
	case err != nil && nothing == nil && unauthorized == nil && !apierrors.IsNotFound(err) && !errors.Is(err, errNoVolume):
		return nil, err
	case err != nil:
		failed := notFound(class, err)
		failed.retry = s.importRetry() // Labels and DataSources are not watched.
		return nil, failed
	}
	found := *matcher
	found.Name, found.Kind = labels[class.DefaultLabel], labels[class.DefaultKindLabel]
	return &found, nil
}

// errNoVolume is the error of a matcher that names a volume that the template does not have.
var errNoVolume = errors.New("unable to find volume")

// inferLabels returns labels of a volume or of its source that include a label.
func (s *Scope) inferLabels(ctx context.Context, name, label string) (map[string]string, error) {
	for i := range s.VM.Spec.Template.Spec.Volumes {
		volume := &s.VM.Spec.Template.Spec.Volumes[i]
		if volume.Name != name {
			continue
		}
		switch {
		case volume.PersistentVolumeClaim != nil:
			return s.labelsOfClaim(ctx,
				client.ObjectKey{Namespace: s.VM.Namespace, Name: volume.PersistentVolumeClaim.ClaimName}, label)
		case volume.DataVolume != nil:
			return s.labelsOfDataVolume(ctx, volume.DataVolume.Name, label)
		default:
			return nil, &inferenceError{fmt.Sprintf("unable to infer defaults from volume %s as type is not supported", name)}
		}
	}
	return nil, fmt.Errorf("%w %s to infer defaults", errNoVolume, name)
}

func require(labels map[string]string, label string) (map[string]string, error) {
	if labels[label] == "" {
		return nil, &inferenceError{fmt.Sprintf("unable to find required %s label on the volume", label)}
	}
	return labels, nil
}

// labelsOfClaim returns the labels of a claim, of the VM's namespace or one that the VM may copy.
func (s *Scope) labelsOfClaim(ctx context.Context, key client.ObjectKey, label string) (map[string]string, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := s.Client.Get(ctx, key, claim); err != nil {
		return nil, fmt.Errorf("get PersistentVolumeClaim %s: %w", key, err)
	}
	return require(claim.Labels, label)
}

// labelsOfDataVolume returns the labels of a DataVolume, of its source or of its claim, which gets labels of its own
// when it is filled.
func (s *Scope) labelsOfDataVolume(ctx context.Context, name, label string) (map[string]string, error) {
	dv := s.dataVolumes[name]
	spec := (*cdiv1beta1.DataVolumeSpec)(nil)
	for i := range s.VM.Spec.DataVolumeTemplates {
		if template := &s.VM.Spec.DataVolumeTemplates[i]; template.Name == name {
			spec = &template.Spec
			if template.Labels[label] != "" {
				return template.Labels, nil
			}
		}
	}
	if spec != nil && s.noImporter {
		return nil, errInferenceWaits
	}
	claim := client.ObjectKey{Namespace: s.VM.Namespace, Name: name}
	if spec == nil {
		if dv == nil {
			return s.labelsOfClaim(ctx, claim, label) // The importer may delete a DataVolume that has succeeded.
		}
		if dv.Labels[label] != "" {
			return dv.Labels, nil
		}
		spec = &dv.Spec.DataVolumeSpec
	}
	labels, err := s.labelsOfSource(ctx, spec, label)
	var nothing *inferenceError
	if !errors.As(err, &nothing) {
		return labels, err
	}
	if dv == nil || !datavolume.Usable(dv) && !datavolume.WaitsForConsumer(dv) {
		return nil, errInferenceWaits
	}
	labels, claimErr := s.labelsOfClaim(ctx, claim, label)
	if apierrors.IsNotFound(claimErr) || errors.As(claimErr, &nothing) {
		return nil, err
	}
	return labels, claimErr
}

// labelsOfSource returns the labels of the source of a DataVolume.
func (s *Scope) labelsOfSource(
	ctx context.Context, spec *cdiv1beta1.DataVolumeSpec, label string,
) (map[string]string, error) {
	if ref := spec.SourceRef; ref != nil && ref.Kind != dataSourceKind {
		return nil, &inferenceError{fmt.Sprintf(
			"unable to infer defaults from DataVolumeSourceRef as Kind %s is not supported", ref.Kind)}
	}
	named, err := s.readDataSource(ctx, spec.SourceRef)
	if err != nil {
		return nil, err
	}
	if named == nil && (spec.Source == nil || spec.Source.PVC == nil && spec.Source.Snapshot == nil) {
		return nil, &inferenceError{"unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported"}
	}
	source, err := s.cloneSource(spec, named)
	if err != nil {
		return nil, s.conceal(ctx, named.Namespace, err) // Only a DataSource may have no source.
	}
	if err := s.checkInferenceAllowed(ctx, named, source); err != nil {
		return nil, err
	}
	if named != nil && named.Labels[label] != "" {
		return named.Labels, nil
	}
	namespace, name := namespaceAndName(source)
	if source.PVC != nil {
		return s.labelsOfClaim(ctx, client.ObjectKey{Namespace: namespace, Name: name}, label)
	}
	return s.labelsOfSnapshot(ctx, client.ObjectKey{Namespace: namespace, Name: name}, label)
}

// snapshotKind is the kind of the snapshots of claims. Not every cluster has it.
var snapshotKind = schema.GroupVersionKind{Group: "snapshot.storage.k8s.io", Version: "v1", Kind: "VolumeSnapshot"}

// labelsOfSnapshot returns the labels of a snapshot, of the VM's namespace or one that the VM may copy.
func (s *Scope) labelsOfSnapshot(ctx context.Context, key client.ObjectKey, label string) (map[string]string, error) {
	snapshot := &metav1.PartialObjectMetadata{}
	snapshot.SetGroupVersionKind(snapshotKind)
	err := s.APIReader.Get(ctx, key, snapshot)
	if meta.IsNoMatchError(err) {
		err = apierrors.NewNotFound(schema.GroupResource{Group: snapshotKind.Group, Resource: "volumesnapshots"}, key.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("get VolumeSnapshot %s: %w", key, err)
	}
	return require(snapshot.Labels, label)
}

// checkInferenceAllowed returns an error if the DataSource or its source is in another namespace and the VM's
// ServiceAccount may not copy the source. The labels would reveal what is there.
func (s *Scope) checkInferenceAllowed(
	ctx context.Context, named *cdi.DataSource, source *cdiv1beta1.DataVolumeSource,
) error {
	namespace, _ := namespaceAndName(source)
	if namespace == s.VM.Namespace && (named == nil || named.Namespace == s.VM.Namespace) {
		return nil
	}
	allowed, err := s.mayCopy(ctx, source)
	if err != nil {
		return err
	}
	if !allowed {
		return &unauthorizedError{s.namedNamespace(named, source)}
	}
	return nil
}
