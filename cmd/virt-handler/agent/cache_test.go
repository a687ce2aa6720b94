// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// A tenant may give VMIs and Pods many labels and tolerations, and an owner may keep those that have ended, with large annotations.
func TestCacheIsSmall(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: it names the directory with etcd and kube-apiserver")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	const root = "../../.."
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, environment, root, t.Name())
	config, err := environment.Start()
	must(err)
	t.Cleanup(func() {
		cancel()
		_ = environment.Stop()
	})
	scheme := apiruntime.NewScheme()
	must(clientgoscheme.AddToScheme(scheme))
	must(v1.AddToScheme(scheme))
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(err)
	_, err = rights.Ship(ctx, root, api)
	must(err)

	const node, large = "blue", 128 << 10
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, "of": "the-tenant"},
			Annotations: map[string]string{"large": strings.Repeat("x", large)},
		}
	}
	add := func(name string, pod corev1.PodPhase, phase v1.VirtualMachineInstancePhase) {
		p := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: "example/launcher"}}, TerminationGracePeriodSeconds: ptr.To[int64](9),
		}}
		must(api.Create(ctx, p))
		before := p.DeepCopy()
		p.Status.Phase = pod
		must(api.Status().Patch(ctx, p, client.MergeFrom(before)))
		vmi := &v1.VirtualMachineInstance{ObjectMeta: meta(name)}
		vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](7)
		vmi.Spec.Architecture = "amd64"
		vmi.Spec.Tolerations = []corev1.Toleration{{Key: "of", Value: "the-tenant"}}
		vmi.Spec.NodeSelector = map[string]string{"of": "the-tenant"}
		must(api.Create(ctx, vmi))
		was := vmi.DeepCopy()
		vmi.Status.Phase, vmi.Status.NodeName = phase, node
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{TargetNode: node}
		must(api.Status().Patch(ctx, vmi, client.MergeFrom(was)))
	}
	add("succeeded", corev1.PodSucceeded, v1.Succeeded)
	add("failed", corev1.PodFailed, v1.Failed)
	add("running", corev1.PodRunning, v1.Running)

	own, incoming := CacheOptions(&Options{Node: node, Namespace: "kubevirt"}), IncomingOptions(node)
	for name, options := range map[string]cache.Options{"own": own, "incoming": incoming} {
		options.Scheme = scheme
		kept, err := cache.New(rights.Handler.ImpersonateOn(config, node), options)
		must(err)
		_, err = kept.GetInformer(ctx, &v1.VirtualMachineInstance{})
		must(err)
		go func() { _ = kept.Start(ctx) }()
		if !kept.WaitForCacheSync(ctx) {
			t.Fatal("the cache does not sync")
		}
		vmis := &v1.VirtualMachineInstanceList{}
		must(kept.List(ctx, vmis))
		if len(vmis.Items) != 3 {
			t.Errorf("%s: %d VMIs", name, len(vmis.Items))
		}
		for i := range vmis.Items {
			vmi := &vmis.Items[i]
			ended := vmi.Name != "running"
			if got := len(vmi.Annotations) == 0 && vmi.Spec.Architecture == "" && vmi.ManagedFields == nil; got != ended {
				t.Errorf("%s: VMI %s is slim: %t", name, vmi.Name, got)
			}
			if grace := vmi.Spec.TerminationGracePeriodSeconds; grace == nil || *grace != 7 {
				t.Errorf("%s: VMI %s has lost its grace period", name, vmi.Name)
			}
			if len(vmi.Labels)+len(vmi.Spec.Tolerations)+len(vmi.Spec.NodeSelector) > 0 {
				t.Errorf("%s: VMI %s has labels, tolerations or a node selector", name, vmi.Name)
			}
		}
		if name == "incoming" {
			continue
		}
		pods := &corev1.PodList{}
		must(kept.List(ctx, pods))
		if len(pods.Items) != 1 || pods.Items[0].Name != "running" {
			t.Fatalf("%d Pods are kept", len(pods.Items))
		}
		pod := &pods.Items[0]
		if diff := cmp.Diff(map[string]string{v1.AppLabel: launcherpod.AppLabelValue}, pod.Labels); diff != "" {
			t.Errorf("labels of the Pod (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: ptr.To[int64](9)}, pod.Spec); diff != "" {
			t.Errorf("spec of the Pod (-want +got):\n%s", diff)
		}
	}
}
