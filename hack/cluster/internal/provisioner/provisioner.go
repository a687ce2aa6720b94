// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package provisioner creates volumes for claims of the local storage classes:
// a directory for a filesystem, a loop device on a sparse file for a block
// volume. All nodes share the host's directories and devices, so a volume for
// many nodes is one without node affinity.
package provisioner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
	"github.com/vireo-project/vireo/hack/cluster/internal/loop"
)

const (
	// annProvisioner is set on a claim by the volume controller once its volume
	// has to be created, annSelectedNode by the scheduler, and annProvisionedBy by us.
	annProvisioner   = "volume.kubernetes.io/storage-provisioner"
	annSelectedNode  = "volume.kubernetes.io/selected-node"
	annProvisionedBy = "pv.kubernetes.io/provisioned-by"
)

// Run creates and deletes volumes until the context ends.
func Run(ctx context.Context, cfg *rest.Config, directory string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the folder of the volumes: %w", err)
	}
	manager, err := ctrl.NewManager(cfg, ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return fmt.Errorf("set up the provisioner: %w", err)
	}
	p := &provisioner{Client: manager.GetClient(), directory: directory, devices: loopDevices{}}
	if err := ctrl.NewControllerManagedBy(manager).Named("claim").For(&corev1.PersistentVolumeClaim{}).Complete(
		reconcilerFunc(p.claim)); err != nil {
		return fmt.Errorf("set up the controller of claims: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(manager).Named("volume").For(&corev1.PersistentVolume{}).Complete(
		reconcilerFunc(p.volume)); err != nil {
		return fmt.Errorf("set up the controller of volumes: %w", err)
	}
	if err := manager.Start(ctx); err != nil {
		return fmt.Errorf("run the provisioner: %w", err)
	}
	return nil
}

type reconcilerFunc func(context.Context, ctrl.Request) (ctrl.Result, error)

func (f reconcilerFunc) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	return f(ctx, r)
}

// blockDevices attaches files as devices.
type blockDevices interface {
	Attach(ctx context.Context, file string) (string, error)
	// Resize changes the size of the file's devices to that of the file.
	Resize(ctx context.Context, file string) error
	Detach(ctx context.Context, file string) error
}

type loopDevices struct{}

func (loopDevices) Attach(ctx context.Context, file string) (string, error) {
	return loop.Attach(ctx, file)
}
func (loopDevices) Resize(ctx context.Context, file string) error { return loop.Resize(ctx, file) }
func (loopDevices) Detach(ctx context.Context, file string) error { return loop.Detach(ctx, file) }

type provisioner struct {
	client.Client
	directory string
	devices   blockDevices
}

// claim creates the volume of a pending claim.
func (p *provisioner) claim(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := p.Get(ctx, r.NamespacedName, claim); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if claim.Annotations[annProvisioner] != config.ProvisionerName || claim.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	if claim.Spec.VolumeName != "" {
		return ctrl.Result{}, p.expand(ctx, claim)
	}
	nodes, err := p.nodesFor(ctx, claim)
	if err != nil {
		return ctrl.Result{}, err
	}
	volume := newVolume(claim, nodes)
	if volume.Spec.Local.Path, err = p.create(ctx, volume); err != nil {
		return ctrl.Result{}, fmt.Errorf("make volume %s: %w", volume.Name, err)
	}
	if err := p.Create(ctx, volume); err != nil && !apierrors.IsAlreadyExists(err) {
		return ctrl.Result{}, fmt.Errorf("create volume %s: %w", volume.Name, err)
	}
	return ctrl.Result{}, nil
}

// expand expands a bound volume to the size that its claim requests. The API server has admitted the request, because
// the storage class allows expansion.
func (p *provisioner) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	wanted := sectors(claim.Spec.Resources.Requests[corev1.ResourceStorage])
	if claim.Status.Phase != corev1.ClaimBound || wanted.Cmp(claim.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		return nil
	}
	volume := &corev1.PersistentVolume{}
	if err := p.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume); err != nil {
		return fmt.Errorf("get volume %s: %w", claim.Spec.VolumeName, err)
	}
	if volume.Annotations[annProvisionedBy] != config.ProvisionerName {
		return nil
	}
	// A directory has no size of its own.
	if *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		file := filepath.Join(p.directory, volume.Name)
		if err := os.Truncate(file, wanted.Value()); err != nil {
			return fmt.Errorf("grow volume %s: %w", volume.Name, err)
		}
		if err := p.devices.Resize(ctx, file); err != nil {
			return fmt.Errorf("grow volume %s: %w", volume.Name, err)
		}
	}
	// The volume is written first, because a claim that has its new capacity is not reconciled again.
	before := volume.DeepCopy()
	volume.Spec.Capacity[corev1.ResourceStorage] = wanted
	if err := p.Patch(ctx, volume, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("record the capacity of volume %s: %w", volume.Name, err)
	}
	claimBefore := claim.DeepCopy()
	claim.Status.Capacity[corev1.ResourceStorage] = wanted
	if err := p.Status().Patch(ctx, claim, client.MergeFrom(claimBefore)); err != nil {
		return fmt.Errorf("record the capacity of claim %s: %w", client.ObjectKeyFromObject(claim), err)
	}
	return nil
}

// nodesFor returns the nodes that may use the claim's volume: the one that the
// scheduler selected, or all if many may write it or none was selected.
func (p *provisioner) nodesFor(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]string, error) {
	selected := claim.Annotations[annSelectedNode]
	shared := slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) ||
		slices.Contains(claim.Spec.AccessModes, corev1.ReadOnlyMany)
	if selected != "" && !shared {
		return []string{selected}, nil
	}
	list := &corev1.NodeList{}
	if err := p.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("there is no node yet")
	}
	names := make([]string, 0, len(list.Items))
	for _, node := range list.Items {
		names = append(names, node.Labels[corev1.LabelHostname])
	}
	return names, nil
}

// create creates the directory or device of a volume and returns its path.
func (p *provisioner) create(ctx context.Context, volume *corev1.PersistentVolume) (string, error) {
	path := filepath.Join(p.directory, volume.Name)
	if *volume.Spec.VolumeMode == corev1.PersistentVolumeFilesystem {
		if err := os.MkdirAll(path, 0o777); err != nil {
			return "", fmt.Errorf("make a folder: %w", err)
		}
		// Pods of any user may write, independent of the umask.
		if err := os.Chmod(path, 0o777); err != nil {
			return "", fmt.Errorf("open a folder to all: %w", err)
		}
		return path, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("make a file: %w", err)
	}
	size := volume.Spec.Capacity[corev1.ResourceStorage]
	err = errors.Join(file.Truncate(size.Value()), file.Close())
	if err != nil {
		return "", fmt.Errorf("size a file: %w", err)
	}
	return p.devices.Attach(ctx, path)
}

// volume deletes a volume whose claim was deleted.
func (p *provisioner) volume(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	volume := &corev1.PersistentVolume{}
	if err := p.Get(ctx, r.NamespacedName, volume); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	isOurs := volume.Annotations[annProvisionedBy] == config.ProvisionerName
	if !isOurs || volume.Status.Phase != corev1.VolumeReleased ||
		volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return ctrl.Result{}, nil
	}
	path := filepath.Join(p.directory, volume.Name)
	if volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		if err := p.devices.Detach(ctx, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ctrl.Result{}, err
		}
	}
	if err := os.RemoveAll(path); err != nil {
		return ctrl.Result{}, fmt.Errorf("remove volume %s: %w", volume.Name, err)
	}
	return ctrl.Result{}, client.IgnoreNotFound(p.Delete(ctx, volume))
}

// newVolume returns a volume named after the claim, so that a retry finds it.
func newVolume(claim *corev1.PersistentVolumeClaim, nodes []string) *corev1.PersistentVolume {
	mode := corev1.PersistentVolumeFilesystem
	if claim.Spec.VolumeMode != nil {
		mode = *claim.Spec.VolumeMode
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "pvc-" + string(claim.UID),
			Annotations: map[string]string{annProvisionedBy: config.ProvisionerName},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: sectors(
				claim.Spec.Resources.Requests[corev1.ResourceStorage])},
			AccessModes:                   claim.Spec.AccessModes,
			VolumeMode:                    &mode,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}},
			NodeAffinity: &corev1.VolumeNodeAffinity{
				Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: nodes,
					}},
				}}}},
		},
	}
	if claim.Spec.StorageClassName != nil {
		volume.Spec.StorageClassName = *claim.Spec.StorageClassName
	}
	return volume
}

// sectors rounds a size up to whole sectors, because a loop device drops an incomplete last one.
func sectors(size resource.Quantity) resource.Quantity {
	const sector = 512
	if rest := size.Value() % sector; rest != 0 {
		return *resource.NewQuantity(size.Value()+sector-rest, resource.BinarySI)
	}
	return size
}
