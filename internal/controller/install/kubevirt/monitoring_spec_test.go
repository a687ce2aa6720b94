// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/prometheus"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
	"github.com/vireo-project/vireo/test/apiserver"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

var _ = Describe("KubeVirt's objects for Prometheus", Ordered, func() {
	var (
		namespace  string
		reconciler *kubevirt.Reconciler
		kv         *v1.KubeVirt
	)
	reconcile := func() error {
		_, err := Reconcile(reconciler, kv)
		return err
	}
	object := func(kind, namespace string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: kind})
		u.SetNamespace(namespace)
		u.SetName(prometheus.Name)
		return u
	}
	role := func() *rbacv1.Role {
		return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: prometheus.RoleName}}
	}
	binding := func() *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: prometheus.RoleName}}
	}
	change := func(by func(*v1.KubeVirtSpec)) {
		GinkgoHelper()
		by(&ExpectExists(kv).Spec)
		Expect(K8sClient.Update(ctx, kv)).To(Succeed())
	}
	versions := func(objects ...client.Object) []string {
		GinkgoHelper()
		var all []string
		for _, o := range objects {
			all = append(all, ExpectExists(o).GetResourceVersion())
		}
		return all
	}

	operatorKinds := apiserver.Install(InRepository("test", "prometheusoperator"))
	AfterAll(func() { Expect(envtest.UninstallCRDs(AdminConfig, operatorKinds)).To(Succeed()) })
	BeforeAll(func() {
		namespace = NewInstallNamespace()
		objects, err := dynamic.NewForConfig(ControllerConfig)
		Expect(err).NotTo(HaveOccurred())
		reconciler = &kubevirt.Reconciler{
			Client: NewWrites(), APIReader: AsController, Recorder: &RecordedEvents{}, Namespace: namespace,
			Options: []clusterconfig.Option{clusterconfig.WithImages(
				clusterconfig.Images{Launcher: "e.org/l:v1", Handler: "e.org/h:v1", Broker: "e.org/b:v1", API: "e.org/a:v1"})},

			Monitoring: &prometheus.Installer{Dynamic: objects, Reader: AsController, Namespace: namespace,
				RunbookURL: "https://e.org/%s"},
		}
		deleteCommonInstancetypes()
		kv = &v1.KubeVirt{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"},
			Spec:       v1.KubeVirtSpec{Configuration: withoutCommonInstancetypes()},
		}
		ExpectCreated(kv)
	})

	It("installs nothing without the Prometheus operator", func() {
		Expect(reconcile()).To(Succeed())
		ExpectGone(role())
		ExpectGone(binding())

		_, err := envtest.InstallCRDs(AdminConfig, operatorKinds)
		Expect(err).NotTo(HaveOccurred())
	})

	It("installs rules and a ServiceMonitor, also if there is no account of Prometheus", func() {
		Expect(reconcile()).To(Succeed())
		installed, found, err := unstructured.NestedSlice(ExpectExists(object("PrometheusRule", namespace)).Object, "spec",
			"groups")
		Expect(err).NotTo(HaveOccurred())
		Expect(found).To(BeTrue())
		all := rules.All(rules.Settings{Namespace: namespace})
		Expect(installed).To(HaveLen(len(all.Groups)))
		first, found, err := unstructured.NestedString(installed[1].(map[string]any)["rules"].([]any)[0].(map[string]any),
			"annotations", "runbook_url")
		Expect(err).NotTo(HaveOccurred())
		Expect(found).To(BeTrue())
		Expect(first).To(Equal("https://e.org/" + all.Alerts()[0].Alert))

		scrape := ExpectExists(object("ServiceMonitor", namespace))
		Expect(scrape.GetLabels()).To(
			And(HaveKeyWithValue("prometheus.kubevirt.io", "true"), HaveKey("openshift.io/cluster-monitoring")))
		Expect(scrape.Object["spec"]).To(Equal(map[string]any{
			"selector":          map[string]any{"matchLabels": map[string]any{"prometheus.kubevirt.io": "true"}},
			"namespaceSelector": map[string]any{"matchNames": []any{namespace}},
			"endpoints": []any{map[string]any{
				"port": "metrics", "scheme": "https", "honorLabels": true, "tlsConfig": map[string]any{"insecureSkipVerify": true},
			}},
		}))
		ExpectGone(role())
	})

	It("installs them where Prometheus is, and lets it find the components", func() {
		ExpectCreated(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "monitoring"}})
		Expect(reconcile()).To(Succeed())
		ExpectGone(object("ServiceMonitor", namespace))
		ExpectExists(object("ServiceMonitor", "monitoring"))
		ExpectExists(object("PrometheusRule", namespace))
		Expect(ExpectExists(binding()).Subjects).To(
			Equal([]rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "monitoring", Name: "prometheus-k8s"}}))
		Expect(ExpectExists(role()).Rules).To(HaveLen(2))
	})

	It("follows the KubeVirt object", func() {
		other, third := NewNamespace(), NewNamespace()
		change(func(s *v1.KubeVirtSpec) {
			s.MonitorNamespace, s.MonitorAccount, s.ServiceMonitorNamespace = other, "stack", third
		})
		Expect(reconcile()).To(Succeed())
		ExpectGone(object("ServiceMonitor", "monitoring"))
		ExpectExists(object("ServiceMonitor", third))
		Expect(ExpectExists(binding()).Subjects[0].Namespace).To(Equal(other))
		Expect(binding().Name).To(Equal(ExpectExists(binding()).RoleRef.Name))

		change(func(s *v1.KubeVirtSpec) { s.ServiceMonitorNamespace = "" })
		Expect(reconcile()).To(Succeed())
		ExpectGone(object("ServiceMonitor", third))
		ExpectExists(object("ServiceMonitor", other))

		change(func(s *v1.KubeVirtSpec) { s.ServiceMonitorNamespace = "nowhere" })
		Expect(reconcile()).To(MatchError(And(ContainSubstring(`namespace "nowhere"`), ContainSubstring("spec.serviceMonitorNamespace"))))
		Expect(ExpectExists(kv).Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring(`create the namespace`))))
		change(func(s *v1.KubeVirtSpec) { s.ServiceMonitorNamespace = "" })
		Expect(reconcile()).To(Succeed())
	})

	It("writes only what has changed, and restores what others change", func() {
		other := ExpectExists(kv).Spec.MonitorNamespace
		all := []client.Object{role(), binding(), object("ServiceMonitor", other), object("PrometheusRule", namespace)}
		before := versions(all...)
		Expect(reconcile()).To(Succeed())
		Expect(versions(all...)).To(Equal(before))

		edited := object("PrometheusRule", namespace)
		unstructured.RemoveNestedField(ExpectExists(edited).Object, "spec", "groups")
		Expect(K8sClient.Update(ctx, edited)).To(Succeed())
		Expect(reconcile()).To(Succeed())
		Expect(ExpectExists(object("PrometheusRule", namespace)).Object["spec"]).To(HaveKey("groups"))
	})

	It("does not touch a ServiceMonitor of the same name that another client created", func() {
		elsewhere := NewNamespace()
		foreign := object("ServiceMonitor", elsewhere)
		foreign.Object["spec"] = map[string]any{"selector": map[string]any{}, "endpoints": []any{}}
		ExpectCreated(foreign)
		Expect(reconcile()).To(Succeed())
		ExpectExists(object("ServiceMonitor", elsewhere))
	})

	It("removes everything with the KubeVirt object", func() {
		deleteGuests()
		other := ExpectExists(kv).Spec.MonitorNamespace
		Expect(K8sClient.Delete(ctx, kv)).To(Succeed())
		Expect(reconcile()).To(Succeed())
		for _, o := range []client.Object{role(), binding(), object("ServiceMonitor", other),
			object("PrometheusRule", namespace)} {
			ExpectGone(o)
		}
	})
})
