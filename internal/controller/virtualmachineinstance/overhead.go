// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// The share of a file system, or a block device, that stays free for metadata unless the importer configures another
// one. Source: kubevirt/kubevirt pkg/storage/types, DefaultFSOverhead.
const (
	filesystemOverhead v1.Percent = "0.055"
	blockOverhead      v1.Percent = "0"
)

// importerConfig is the kind of the importer's configuration. Its status has the shares in force.
var importerConfig = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "CDIConfig"}

// importerConfigName is the name of the cluster's one. Source: kubevirt/containerized-data-importer pkg/common,
// ConfigName.
const importerConfigName = "config"

// percent matches the shares that the importer accepts. Source: its types_overlay.go, Percent.
var percent = regexp.MustCompile(`^(0(\.\d{1,3})?|1)$`)

// Overheads are the shares of file systems on claims that disks leave free, as the importer configures them. The zero
// value has none.
type Overheads struct {
	// Global is the share of storage classes without one of their own, "" if unset.
	Global v1.Percent `json:"global"`
	// StorageClass has the shares of storage classes, by name.
	StorageClass map[string]v1.Percent `json:"storageClass"`
}

// of returns the overhead of a claim. It ignores invalid shares.
func (o Overheads) of(claim *corev1.PersistentVolumeClaim) v1.Percent {
	if vmistatus.IsBlockClaim(claim) {
		return blockOverhead
	}
	if class := claim.Spec.StorageClassName; class != nil && percent.MatchString(string(o.StorageClass[*class])) {
		return o.StorageClass[*class]
	}
	if percent.MatchString(string(o.Global)) {
		return o.Global
	}
	return filesystemOverhead
}

// ReadOverheads reads the importer's configuration, if the cluster has an importer. claim is any claim.
func ReadOverheads(
	ctx context.Context, apiReader client.Reader, importer datavolume.Reader, claim client.ObjectKey,
) (Overheads, error) {
	if _, err := importer.Get(ctx, claim); errors.Is(err, datavolume.ErrNotInstalled) {
		return Overheads{}, nil
	}
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(importerConfig)
	err := apiReader.Get(ctx, client.ObjectKey{Name: importerConfigName}, config)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return Overheads{}, nil
	}
	if err != nil {
		return Overheads{}, fmt.Errorf("get CDIConfig %s: %w", importerConfigName, err)
	}
	var overheads Overheads
	content, _, err := unstructured.NestedMap(config.Object, "status", "filesystemOverhead")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &overheads)
	}
	if err != nil {
		return Overheads{}, fmt.Errorf("read status.filesystemOverhead of CDIConfig %s: %w", importerConfigName, err)
	}
	return overheads, nil
}

// readOverheads reads the overheads once for each assignment, and only for a VMI with disk images in file systems.
func (s *scope) readOverheads(ctx context.Context) error {
	for _, claim := range s.claims {
		if vmistatus.IsBlockClaim(claim) {
			continue
		}
		overheads, err := ReadOverheads(ctx, s.apiReader, s.importer, client.ObjectKeyFromObject(claim))
		s.overheads = overheads
		return err
	}
	return nil
}
