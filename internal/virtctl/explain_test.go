// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// The findings are tested in the package explain. This tests that the objects are found.
func TestExplainFindsObjects(t *testing.T) {
	s := virtctltest.NewServer(t)
	deployment := func(name string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "vireo", Name: name},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 1}}
	}
	s.Add(&v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "vireo", Name: "kubevirt"}}, deployment("virt-controller"),
		deployment("virt-api"))
	vmi := builder.MakeVMI("demo").UID("u-1").Namespace(virtctltest.Namespace).PVC("data", "missing").Phase(v1.Scheduling)
	s.Add(builder.MakeVM("demo").Namespace(virtctltest.Namespace).Template(vmi).Obj(), vmi.Obj())
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "virt-launcher-demo-x",
		Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: "u-1"}}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
		Message: "0/1 nodes are available: 1 Insufficient cpu."}}
	s.Add(pod, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "e"}, Reason: "FailedScheduling",
		Message: "no luck", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod.Name},
	})
	got := s.Run(virtctl.Execute, "explain", "vm/demo")
	if got.Code != 0 {
		t.Fatal(got.ErrOut)
	}
	for _, want := range []string{"PersistentVolumeClaim missing, of the volume data, does not exist",
		"No node has enough CPU", "1 node: too little free CPU", "FailedScheduling Pod/virt-launcher-demo-x: no luck"} {
		if !strings.Contains(got.Out, want) {
			t.Errorf("explain does not print %q:\n%s", want, got.Out)
		}
	}
	if strings.Contains(got.Out, "is not available") {
		t.Errorf("a problem of the installation is reported:\n%s", got.Out)
	}
	if got := s.Run(virtctl.Execute, "explain", "other", "-o", "json"); !strings.Contains(got.Out, `"what": "There is no VirtualMachine`) {
		t.Errorf("%+v", got)
	}
}

// Without an instance, Pods are found by the VM's name, which may be too long for a label's value.
func TestExplainFindsPodsOfLongNames(t *testing.T) {
	s := virtctltest.NewServer(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "virt-launcher-x",
		Labels: map[string]string{v1.VirtualMachineInstanceIDLabel: longID}}}
	s.Add(builder.MakeVM(longName).Namespace(virtctltest.Namespace).Obj(), pod, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace, Name: "e"}, Reason: "FailedScheduling",
		Message: "no luck", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod.Name},
	})
	if got := s.Run(virtctl.Execute, "explain", "vm/"+longName); got.Code != 0 ||
		!strings.Contains(got.Out, "FailedScheduling Pod/virt-launcher-x: no luck") {
		t.Errorf("%+v", got)
	}
}
