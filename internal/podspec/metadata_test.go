// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

func TestLiveMetadata(t *testing.T) {
	live := podspec.LiveMetadata{Annotations: []string{"note", "acme.example/*"},
		Labels: []string{"tier", "acme.example/*"}}
	from := metav1.ObjectMeta{
		Annotations: map[string]string{
			"note": "new", "acme.example/a": "1", "acme.exampleb": "x", "tier": "x", "other": "x", "descheduler.alpha.kubernetes.io/evict": "true",
		},
		Labels: map[string]string{"tier": "web", "acme.example/b": "2", "note": "x"},
	}
	to := metav1.ObjectMeta{
		Annotations: map[string]string{"note": "old", "kept": "y",
			"descheduler.alpha.kubernetes.io/prefer-no-eviction": "true", "acme.example/gone": "3"},
		Labels: map[string]string{"tier": "db", "kept": "y", "acme.example/gone": "4",
			"descheduler.alpha.kubernetes.io/evict": "label"},
	}
	live.Copy(&to, &from)
	annotations := map[string]string{"note": "new", "acme.example/a": "1", "kept": "y",
		"descheduler.alpha.kubernetes.io/evict": "true"}
	if !maps.Equal(to.Annotations, annotations) {
		t.Errorf("annotations %v, want %v", to.Annotations, annotations)
	}
	labels := map[string]string{"tier": "web", "acme.example/b": "2", "kept": "y",
		"descheduler.alpha.kubernetes.io/evict": "label"}
	if !maps.Equal(to.Labels, labels) {
		t.Errorf("labels %v, want %v", to.Labels, labels)
	}

	live.Remove(&to)
	if want := map[string]string{"kept": "y"}; !maps.Equal(to.Annotations, want) {
		t.Errorf("annotations %v are left, want %v", to.Annotations, want)
	}

	empty := metav1.ObjectMeta{}
	if live.Copy(&empty, &metav1.ObjectMeta{}); empty.Annotations != nil || empty.Labels != nil {
		t.Errorf("nothing became %+v", empty)
	}
	if live.Copy(&empty, &from); len(empty.Annotations) != 3 || len(empty.Labels) != 2 {
		t.Errorf("an object without any became %+v", empty)
	}
}

// Keys that determine the owner of a Pod, its networks and the commands to run in it are not copied.
func TestLiveMetadataIgnoresReservedKeys(t *testing.T) {
	vmi := makeVMI().Masquerade().Obj()
	pod, err := podspec.Build(vmi, config())
	if err != nil {
		t.Fatal(err)
	}
	own := []string{
		"kubevirt.io/migrationJobUID", "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status",
		"v1.multus-cni.io/default-network",
		"pre.hook.backup.velero.io/command", "post.hook.backup.velero.io/container", "sidecar.istio.io/inject",
		"istio.io/reroute-virtual-interfaces", "kubectl.kubernetes.io/last-applied-configuration",
		"descheduler.alpha.kubernetes.io/eviction-in-progress", "pr.kubevirt.io/x", v1.NodeNameLabel,
		v1.MemoryOverheadAnnotationBytes,
	}
	own = slices.AppendSeq(own, maps.Keys(pod.Annotations))
	own = slices.AppendSeq(own, maps.Keys(pod.Labels))
	for _, patterns := range [][]string{own, {"*"}, {"kubevirt.io/*", "k8s*", "pre.hook*"}} {
		live := podspec.LiveMetadata{Annotations: patterns, Labels: patterns}
		for _, key := range own {
			to := metav1.ObjectMeta{Annotations: map[string]string{key: "pod"}, Labels: map[string]string{key: "pod"}}
			from := metav1.ObjectMeta{Annotations: map[string]string{key: "tenant"}, Labels: map[string]string{key: "tenant"}}
			live.Copy(&to, &from)
			live.Copy(&to, &metav1.ObjectMeta{})
			if to.Annotations[key] != "pod" || to.Labels[key] != "pod" {
				t.Errorf("with %q, %s of the Pod became annotation %q, label %q", patterns, key, to.Annotations[key],
					to.Labels[key])
			}
		}
	}
}
