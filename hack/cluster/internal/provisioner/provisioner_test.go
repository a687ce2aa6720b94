// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package provisioner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/hack/cluster/internal/config"
)

type fakeDevices map[string]bool

func (f fakeDevices) Attach(_ context.Context, file string) (string, error) {
	f[file] = true
	return "/dev/loop7", nil
}

func (f fakeDevices) Resize(_ context.Context, file string) error {
	if !f[file] {
		return fmt.Errorf("%s has no device", file)
	}
	return nil
}

func (f fakeDevices) Detach(_ context.Context, file string) error {
	delete(f, file)
	return nil
}

func claim(
	mode corev1.PersistentVolumeMode, access corev1.PersistentVolumeAccessMode, provisioner string,
) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "data", UID: "u1",
			Annotations: map[string]string{annProvisioner: provisioner, annSelectedNode: "node2"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{access},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1000")}},
		},
	}
}

func setup(t *testing.T, objects ...client.Object) *provisioner {
	t.Helper()
	for _, name := range []string{"node1", "node2"} {
		objects = append(objects,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}})
	}
	return &provisioner{Client: fake.NewClientBuilder().WithObjects(objects...).
		WithStatusSubresource(&corev1.PersistentVolumeClaim{}).Build(), directory: t.TempDir(), devices: fakeDevices{}}
}

func provisioned(t *testing.T, p *provisioner, c *corev1.PersistentVolumeClaim) []corev1.PersistentVolume {
	t.Helper()
	// Twice: the second finds what the first has made.
	for range 2 {
		if _, err := p.claim(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(c)}); err != nil {
			t.Fatal(err)
		}
	}
	list := &corev1.PersistentVolumeList{}
	if err := p.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func TestClaim(t *testing.T) {
	tests := map[string]struct {
		claim *corev1.PersistentVolumeClaim
		nodes []string
		block bool
	}{
		"a folder for one node":        {claim(corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce, config.ProvisionerName), []string{"node2"}, false},
		"a device for all nodes":       {claim(corev1.PersistentVolumeBlock, corev1.ReadWriteMany, config.ProvisionerName), []string{"node1", "node2"}, true},
		"another provisioner's is not": {claim(corev1.PersistentVolumeFilesystem, corev1.ReadWriteOnce, "theirs"), nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := setup(t, tt.claim)
			volumes := provisioned(t, p, tt.claim)
			if tt.nodes == nil {
				if len(volumes) != 0 {
					t.Errorf("volumes %v", volumes)
				}
				return
			}
			if len(volumes) != 1 {
				t.Fatalf("%d volumes, want 1", len(volumes))
			}
			spec, path := volumes[0].Spec, filepath.Join(p.directory, "pvc-u1")
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			want := path
			if tt.block {
				want = "/dev/loop7"
				if info.Size() != 1024 {
					t.Errorf("the file has %d bytes, want whole sectors", info.Size())
				}
			}
			if spec.Local.Path != want {
				t.Errorf("path %s, want %s", spec.Local.Path, want)
			}
			nodes := spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values
			if diff := cmp.Diff(tt.nodes, nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

func TestClaimGrows(t *testing.T) {
	for name, mode := range map[string]corev1.PersistentVolumeMode{"folder": corev1.PersistentVolumeFilesystem,
		"device": corev1.PersistentVolumeBlock} {
		t.Run(name, func(t *testing.T) {
			c := claim(mode, corev1.ReadWriteOnce, config.ProvisionerName)
			p := setup(t, c)
			volume := provisioned(t, p, c)[0]
			bound(t, p, c, &volume)
			c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("4Ki")
			if err := p.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if got := provisioned(t, p, c)[0].Spec.Capacity.Storage(); got.Value() != 4096 {
				t.Errorf("the volume's capacity is %s, want 4Ki", got)
			}
			if err := p.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
				t.Fatal(err)
			}
			if got := c.Status.Capacity.Storage(); got.Value() != 4096 {
				t.Errorf("the claim's capacity is %s, want 4Ki", got)
			}
			info, err := os.Stat(filepath.Join(p.directory, volume.Name))
			if err != nil {
				t.Fatal(err)
			}
			if mode == corev1.PersistentVolumeBlock && info.Size() != 4096 {
				t.Errorf("the device's file has %d bytes, want 4096", info.Size())
			}
		})
	}
}

// bound makes of a claim what kube-controller-manager makes of it when its volume is there.
func bound(t *testing.T, p *provisioner, c *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) {
	t.Helper()
	if err := p.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
		t.Fatal(err)
	}
	c.Spec.VolumeName = volume.Name
	if err := p.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, volume.Spec.Capacity
	if err := p.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestReleasedVolumeIsDeleted(t *testing.T) {
	c := claim(corev1.PersistentVolumeBlock, corev1.ReadWriteOnce, config.ProvisionerName)
	p := setup(t, c)
	volume := provisioned(t, p, c)[0]
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&volume)}
	if _, err := p.volume(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.directory, volume.Name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("a volume that is in use lost its file: %v", err)
	}
	volume.Status.Phase = corev1.VolumeReleased
	if err := p.Status().Update(t.Context(), &volume); err != nil {
		t.Fatal(err)
	}
	if _, err := p.volume(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("its file is still there: %v", err)
	}
	if len(p.devices.(fakeDevices)) != 0 {
		t.Error("its device is still attached")
	}
	if err := p.Get(t.Context(), request.NamespacedName, &volume); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the volume is still there: %v", err)
	}
}
