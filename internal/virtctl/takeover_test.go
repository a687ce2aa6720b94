// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/takeover"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// managedByKubeVirt returns a cluster of KubeVirt with a guest that can be adopted.
func managedByKubeVirt(t *testing.T, conditions ...v1.KubeVirtCondition) *virtctltest.Server {
	t.Helper()
	s := virtctltest.NewServer(t)
	s.AddClusterKind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions")
	for _, kind := range takeover.WorkKinds {
		s.AddKind(kind.GroupVersion().String(), kind.Kind, strings.ToLower(kind.Kind)+"s")
	}
	s.Handle("/version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"gitVersion":"v1.37.0"}`)
	})
	vmi := builder.MakeVMI("web").Namespace("shop").UID("web").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-1"
		vmi.Status.ActivePods = map[types.UID]string{"launcher": "node-1"}
	}).Obj()
	pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "launcher:v1"})
	if err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.UID, pod.Spec.NodeName = "virt-launcher-web-x7k2p", "launcher", "node-1"
	s.Add(vmi, pod, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "virt-operator"}},
		&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"},
			Status: v1.KubeVirtStatus{ObservedKubeVirtVersion: "v1.9.0", Conditions: conditions}})
	return s
}

func TestTakeoverPlan(t *testing.T) {
	s := managedByKubeVirt(t, v1.KubeVirtCondition{Type: v1.KubeVirtConditionAvailable, Status: corev1.ConditionTrue})
	const want = `KubeVirt v1.9.0

NAMESPACE   NAME   NODE     VERDICT   REASONS
shop        web    node-1   Adopted

1 running guests: 1 run on, 0 run on and cannot be started again, 0 have to be stopped. 0 stops.
`
	if got := s.Run(virtctl.Execute, "adm", "takeover", "plan"); got != (virtctltest.Result{Out: want}) {
		t.Errorf("%+v", got)
	}
	if writes := s.Writes(); len(writes) > 0 {
		t.Errorf("it is not only read: %v", writes)
	}
}

func TestTakeoverPlanWithStops(t *testing.T) {
	s := managedByKubeVirt(t)
	got := s.Run(virtctl.Execute, "adm", "takeover", "plan")
	if got.Code != 2 || !strings.Contains(got.Out, "To be done before a takeover:\n  KubeVirt kubevirt/kubevirt: It is not Available") {
		t.Errorf("%+v", got)
	}
	got = s.Run(virtctl.Execute, "adm", "takeover", "plan", "-o", "json")
	plan := takeover.Plan{}
	if err := json.Unmarshal([]byte(got.Out), &plan); err != nil || got.Code != 2 || len(plan.Stops) != 1 ||
		len(plan.Guests) != 1 {
		t.Errorf("%v: %+v", err, got)
	}
}
