// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/quantity"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

// templateHashAnnotation of a revision is a hash of the template of VMs, by which the revision is found without reading
// its data. The generation does not identify it, because scaling the pool changes the generation. The annotation is
// Vireo's own.
const templateHashAnnotation = "pool.kubevirt.io/template-hash"

// revisions contains the ControllerRevisions of a pool, whose data is a spec.
type revisions struct {
	// current is the name of the one with the current template.
	current string
	// specs contains the data of those that are compared with the current one; nil for those that do not exist.
	specs map[string]*poolv1.VirtualMachinePoolSpec
}

// sorter sorts the keys of the pool's revisions.
func (s *Scope) sorter() kit.RevisionSorter {
	return kit.RevisionSorter{Client: s.Client, APIReader: s.APIReader, Owner: s.Pool}
}

// sortRevisions sorts the keys of the pool's revisions that are not sorted.
func sortRevisions(ctx context.Context, s *Scope) error {
	revisions, err := kit.OwnRevisions(ctx, s.Client, s.Pool)
	if err == nil && controllerutil.ContainsFinalizer(s.Pool, metav1.FinalizerOrphanDependents) {
		// The garbage collector cannot orphan those that KubeVirt created and this pool has not adopted, either.
		revisions, err = kit.LiveRevisions(ctx, s.APIReader, s.Pool)
	}
	if err != nil {
		return err
	}
	return s.sorter().SortAll(ctx, revisions)
}

// loadRevisions finds the revision of the current template, and creates it if it does not exist.
func loadRevisions(ctx context.Context, s *Scope) error {
	owned, err := kit.OwnRevisions(ctx, s.Client, s.Pool)
	if err != nil {
		return err
	}
	sum, err := templateHash(&s.Pool.Spec)
	if err != nil {
		return err
	}
	s.revisions = &revisions{specs: map[string]*poolv1.VirtualMachinePoolSpec{}}
	name := revisionName(s.Pool)
	for i := range owned {
		revision := &owned[i]
		if kit.IsRevisionCopy(revision) {
			continue
		}
		if revision.Name == name || s.revisions.current == "" && revision.Annotations[templateHashAnnotation] == sum {
			s.revisions.current = revision.Name
		}
	}
	if s.revisions.current != "" {
		return nil
	}
	s.revisions.current, err = createRevision(ctx, s, name, sum)
	if err != nil {
		s.fail(failedUpdate, err)
	}
	return err
}

// revisionName returns the name of the revision of a pool's generation, as in KubeVirt.
func revisionName(pool *poolv1.VirtualMachinePool) string {
	return fmt.Sprintf("%s-%d", pool.Name, pool.Generation)
}

// templateHash returns a hash of those fields of the spec from which VMs are created.
func templateHash(spec *poolv1.VirtualMachinePoolSpec) (string, error) {
	raw, err := json.Marshal(struct {
		Template *poolv1.VirtualMachineTemplateSpec
		Names    *poolv1.VirtualMachinePoolNameGeneration
	}{spec.VirtualMachineTemplate, spec.NameGeneration})
	if err != nil {
		return "", fmt.Errorf("encode the template of a pool: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8]), nil
}

// createRevision stores the spec as a revision and returns its name. If another object has the name, such as the
// revision of an earlier pool that is not deleted yet, the name gets a suffix.
func createRevision(ctx context.Context, s *Scope, name, sum string) (string, error) {
	for _, name := range []string{name, name + "-" + kit.Suffix(s.Pool.UID, uint64(s.Pool.Generation))} {
		revision := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: s.Key.Namespace,
				Labels:          map[string]string{v1.CreatedByLabel: string(s.Pool.UID)},
				Annotations:     map[string]string{templateHashAnnotation: sum},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.Pool, poolKind)},
			},
			Revision: s.Pool.Generation,
		}
		if err := revisiondata.SetData(revision, s.Pool.Spec); err != nil {
			return "", fmt.Errorf("encode the spec of VirtualMachinePool %s: %w", s.Key, err)
		}
		err := s.Client.Create(ctx, revision)
		if err == nil {
			return name, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("create ControllerRevision %s: %w", name, err)
		}
		known, err := adoptRevision(ctx, s, revision)
		if known || err != nil {
			return name, err
		}
	}
	return "", fmt.Errorf("create ControllerRevision %s: another object has the name", name)
}

// adoptRevision reports whether the existing object of this name is a revision of the pool. It adds the label by which
// revisions are found, which a revision that KubeVirt created does not have, and sorts its keys.
func adoptRevision(ctx context.Context, s *Scope, wanted *appsv1.ControllerRevision) (bool, error) {
	existing := &appsv1.ControllerRevision{}
	if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), existing); err != nil {
		return false, fmt.Errorf("get ControllerRevision %s, which exists: %w", wanted.Name, err)
	}
	if !metav1.IsControlledBy(existing, s.Pool) {
		return false, nil
	}
	if existing.Labels[v1.CreatedByLabel] == string(s.Pool.UID) {
		return true, nil // the cache does not contain it yet
	}
	hash := map[string]string{templateHashAnnotation: wanted.Annotations[templateHashAnnotation]}
	return true, s.sorter().Sort(ctx, client.ObjectKeyFromObject(wanted), hash)
}

// referencedRevisions returns the names of the revisions with which VMs and VMIs of the pool are labeled.
func (s *Scope) referencedRevisions() map[string]bool {
	names := map[string]bool{}
	for _, m := range s.members {
		if name := m.revision(); name != "" {
			names[name] = true
		}
		if m.vmi != nil && m.runningRevision() != "" {
			names[m.runningRevision()] = true
		}
	}
	return names
}

// read reads the data of the revisions that an update compares with the current one. There are none unless an update is
// in progress.
func (r *revisions) read(ctx context.Context, s *Scope) error {
	for name := range compared(&s.Pool.Spec, s.members, r.current) {
		if _, known := r.specs[name]; known {
			continue
		}
		revision, spec := &appsv1.ControllerRevision{}, &poolv1.VirtualMachinePoolSpec{}
		err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: s.Key.Namespace, Name: name}, revision)
		switch {
		case apierrors.IsNotFound(err):
			r.specs[name] = nil
			continue
		case err != nil:
			return fmt.Errorf("get ControllerRevision %s: %w", name, err)
		case !metav1.IsControlledBy(revision, s.Pool):
			r.specs[name] = nil
			continue
		}
		if err := quantity.Unmarshal(revision.Data, spec); err != nil || spec.VirtualMachineTemplate == nil {
			spec = nil // as if it did not exist
		}
		r.specs[name] = spec
	}
	return nil
}

// pruneRevisions deletes the revisions with which no VM and no VMI is labeled.
func pruneRevisions(ctx context.Context, s *Scope) error {
	owned, err := kit.OwnRevisions(ctx, s.Client, s.Pool)
	if err != nil {
		return err
	}
	names := s.referencedRevisions()
	for i := range owned {
		old := &owned[i]
		if old.Name == s.revisions.current || names[old.Name] || kit.IsRevisionCopy(old) {
			continue
		}
		revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: old.Namespace, Name: old.Name}}
		err := s.Client.Delete(ctx, revision, client.Preconditions{UID: ptr.To(old.UID)})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			err = fmt.Errorf("delete ControllerRevision %s: %w", old.Name, err)
			s.fail(failedPruning, err)
			return err
		}
	}
	return nil
}
