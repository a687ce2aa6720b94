// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/install/guard"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/rights"
)

// TestWaitsForKubeVirt runs virt-controller on a cluster on which KubeVirt's operator runs, with a guest that KubeVirt
// has started: under the shipped roles, it changes nothing but a condition until the operator is gone, and ends when
// the operator comes back.
func TestWaitsForKubeVirt(t *testing.T) {
	g := NewWithT(t)
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	config := startAPIServer(t, environment)
	c, err := client.New(config, client.Options{Scheme: NewScheme()})
	g.Expect(err).NotTo(HaveOccurred())
	ctx := t.Context()
	_, err = rights.Ship(ctx, root, c)
	g.Expect(err).NotTo(HaveOccurred())
	createWebhookConfigurations(ctx, g, c)

	labels := map[string]string{v1.AppLabel: "virt-operator"}
	operator := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "virt-operator", Labels: labels},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "virt-operator", Image: "e.org/operator"}}}}},
	}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	vmi := builder.MakeVMI("vm").Namespace("default").Obj()
	for _, o := range []client.Object{operator, kv, vmi} {
		g.Expect(c.Create(ctx, o)).To(Succeed())
	}
	pod, err := podspec.Build(vmi, podspec.Config{LauncherImage: "e.org/l:v1"})
	g.Expect(err).NotTo(HaveOccurred())
	pod.Name, pod.Spec.Containers[0].Command = "virt-launcher-vm-x7k2p", []string{"/usr/bin/virt-launcher-monitor"}
	g.Expect(c.Create(ctx, pod)).To(Succeed())
	vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-1"
	g.Expect(c.Status().Update(ctx, vmi)).To(Succeed())

	options := &Options{
		LauncherImage: "e.org/l:v1", HandlerImage: "e.org/h:v1", BrokerImage: "e.org/b:v1", APIImage: "e.org/a:v1",
		Namespace: "kubevirt", BindAddress: "127.0.0.1", Port: freePort(t), HealthPort: freePort(t), WebhookPort: freePort(t),
		WebhookService: "hooks", MutatingWebhooks: mutatingWebhooks, ValidatingWebhooks: validatingWebhooks,
		LeaderElection: true, PodName: "virt-controller-1", SkipNameValidation: true,
	}
	ended, stop := run(t, rights.Controller.Impersonate(config, nil), options)
	t.Cleanup(stop)
	probe := func(path string) (int, string) {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", options.HealthPort, path))
		if err != nil {
			return 0, ""
		}
		defer func() { _ = response.Body.Close() }()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	waiting := func() *v1.KubeVirtCondition {
		now := &v1.KubeVirt{}
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(kv), now)).To(Succeed())
		return conditions.Find(now.Status.Conditions, v1.KubeVirtConditionWaiting)
	}
	g.Eventually(waiting, timeout).Should(HaveValue(And(HaveField("Status", corev1.ConditionTrue),
		HaveField("Reason", guard.ReasonInstalled), HaveField("Message", ContainSubstring("virt-operator has 2 replicas")))))
	g.Eventually(func() int { code, _ := probe("/healthz"); return code }, timeout).Should(Equal(http.StatusOK))
	code, _ := probe("/readyz")
	g.Expect(code).To(Equal(http.StatusInternalServerError))
	untouched := func(g Gomega) {
		for _, o := range []client.Object{vmi, pod} {
			now := o.DeepCopyObject().(client.Object)
			g.Expect(c.Get(ctx, client.ObjectKeyFromObject(o), now)).To(Succeed())
			g.Expect(now.GetResourceVersion()).To(Equal(o.GetResourceVersion()), o.GetName())
		}
		for _, list := range []client.ObjectList{&appsv1.DaemonSetList{}, &coordinationv1.LeaseList{}} {
			g.Expect(c.List(ctx, list, client.InNamespace("kubevirt"))).To(Succeed())
			g.Expect(meta.LenList(list)).To(BeZero(), "%T", list)
		}
		now := &v1.KubeVirt{}
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(kv), now)).To(Succeed())
		g.Expect(now.Finalizers).To(BeEmpty())
		g.Expect(now.Status.Conditions).To(HaveLen(1))
	}
	g.Consistently(untouched, 3*time.Second).Should(Succeed())

	// The operator's webhook alone is a sign too: without its server, no KubeVirt object can be changed.
	webhook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "virt-operator-validator"}}
	g.Expect(c.Create(ctx, webhook)).To(Succeed())
	operator.Spec.Replicas = ptr.To[int32](0)
	g.Expect(c.Update(ctx, operator)).To(Succeed())
	g.Eventually(waiting, timeout).Should(HaveValue(HaveField("Message", ContainSubstring("virt-operator-validator"))))
	g.Expect(c.Delete(ctx, webhook)).To(Succeed())
	g.Eventually(waiting, timeout).Should(BeNil())
	g.Eventually(func() []string {
		now := &v1.KubeVirt{}
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(kv), now)).To(Succeed())
		return now.Finalizers
	}, timeout).ShouldNot(BeEmpty(), "the reconcilers run")
	g.Eventually(func() error { code, text := probe("/readyz"); return readiness(code, text) }, timeout).Should(Succeed())
	now := &v1.VirtualMachineInstance{}
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(vmi), now)).To(Succeed())
	g.Expect(now.Status.Phase).To(Equal(v1.Running), "its launcher Pod has KubeVirt's name")

	operator.Spec.Replicas = ptr.To[int32](1)
	g.Expect(c.Update(ctx, operator)).To(Succeed())
	g.Eventually(ended, timeout).Should(Receive(MatchError(guard.ErrAppeared)))
}

// readiness returns an error for any answer but that of a process that is ready.
func readiness(code int, text string) error {
	if code != http.StatusOK {
		return fmt.Errorf("%d: %s", code, text)
	}
	return nil
}
