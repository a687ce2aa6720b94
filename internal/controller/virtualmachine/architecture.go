// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

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
