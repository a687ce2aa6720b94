// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// installation is a reconciler with an install namespace and a KubeVirt object of its own.
type installation struct {
	namespace  string
	reconciler *kubevirt.Reconciler
	writes     *Writes
	kv         *v1.KubeVirt
	recorded   *RecordedEvents
}

func newInstallation(changes ...func(*v1.KubeVirtSpec)) *installation {
	GinkgoHelper()
	k := &installation{namespace: NewInstallNamespace(), writes: NewWrites(), recorded: &RecordedEvents{}}
	k.reconciler = &kubevirt.Reconciler{
		Client: k.writes, APIReader: AsController, Recorder: k.recorded, Namespace: k.namespace,
		Options: []clusterconfig.Option{clusterconfig.WithImages(
			clusterconfig.Images{Launcher: "e.org/l:v1", Handler: "e.org/h:v1", Broker: "e.org/b:v1", API: "e.org/a:v1"})},
	}
	k.kv = k.newKubeVirt("kubevirt")
	for _, change := range changes {
		change(&k.kv.Spec)
	}
	ExpectCreated(k.kv)
	return k
}

func (k *installation) newKubeVirt(name string) *v1.KubeVirt {
	return &v1.KubeVirt{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: name},
		// Independent of the nodes of other specs.
		Spec: v1.KubeVirtSpec{Infra: &v1.ComponentConfig{Replicas: ptr.To[uint8](2)}},
	}
}

func (k *installation) reconcile(kv *v1.KubeVirt) error {
	_, err := Reconcile(k.reconciler, kv)
	return err
}

// run starts a manager with the reconciler, until the end of the spec.
func (k *installation) run() {
	GinkgoHelper()
	here := cache.ByObject{Namespaces: map[string]cache.Config{k.namespace: {}}}
	mgr, err := ctrl.NewManager(ControllerConfig, ctrl.Options{
		Scheme: scheme.Scheme, Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&appsv1.DaemonSet{}: here, &appsv1.Deployment{}: here, &corev1.Service{}: here, &corev1.ConfigMap{}: here,
			&corev1.Secret{}: here, &policyv1.PodDisruptionBudget{}: here, &coordinationv1.Lease{}: here,
		}},
	})
	Expect(err).NotTo(HaveOccurred())
	running := &kubevirt.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: k.recorded, Namespace: k.namespace,
		Options: k.reconciler.Options, Clock: k.reconciler.Clock,
	}
	Expect(running.SetupWithManager(mgr)).To(Succeed())
	until, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(until) }()
	DeferCleanup(func() {
		stop()
		Eventually(done).Should(Receive(Succeed()))
	})
}

func (k *installation) agents() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: manifests.HandlerName}}
}

func (k *installation) brokers() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: manifests.BrokerName}}
}

func (k *installation) api() *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: manifests.APIName}}
}

func (*installation) apiService() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(manifests.APIServiceKind)
	u.SetName("v1.subresources.kubevirt.io")
	return u
}

func (k *installation) bundles() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: certificate.BundleName}}
}

func (k *installation) authority(role certificate.Role) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: role.AuthoritySecret()}}
}

func (k *installation) service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace, Name: "kubevirt-prometheus-metrics"}}
}

// served writes virt-api's status, in place of the Deployment controller, which envtest lacks.
func (k *installation) served(ready int32) {
	GinkgoHelper()
	d := ExpectExists(k.api())
	d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, UpdatedReplicas: 2,
		ReadyReplicas: ready}
	ExpectStatus(d)
}

// rolledOut does the same for the brokers, the agents and virt-api.
func (k *installation) rolledOut(ready int32) {
	GinkgoHelper()
	k.rolled(k.brokers(), ready)
	k.rolled(k.agents(), ready)
	k.served(2)
}

func (*installation) rolled(ds *appsv1.DaemonSet, ready int32) {
	GinkgoHelper()
	ExpectExists(ds)
	ds.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: ds.Generation, DesiredNumberScheduled: 2, CurrentNumberScheduled: 2,
		UpdatedNumberScheduled: 2, NumberReady: ready, NumberAvailable: ready,
	}
	ExpectStatus(ds)
}

func (*installation) expectCondition(
	kv *v1.KubeVirt, kind v1.KubeVirtConditionType, status corev1.ConditionStatus, reason string,
) {
	GinkgoHelper()
	for _, c := range ExpectExists(kv).Status.Conditions {
		if c.Type == kind {
			Expect(c.Status).To(Equal(status), "%s: %s", c.Reason, c.Message)
			Expect(c.Reason).To(Equal(reason))
			return
		}
	}
	Fail("there is no condition " + string(kind))
}

// collect removes what a foreground deletion left to the garbage collector, which envtest does not have.
func (*installation) collect(object client.Object) {
	GinkgoHelper()
	Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	Expect(object.GetDeletionTimestamp()).NotTo(BeNil())
	object.SetFinalizers(nil)
	Expect(K8sClient.Update(ctx, object)).To(Succeed())
}

// someRequest returns a certificate request with a subject of no component.
func someRequest() []byte {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	request, err := certutil.MakeCSR(key, &pkix.Name{}, []string{"nobody"}, nil)
	Expect(err).NotTo(HaveOccurred())
	return request
}

// deleteGuests deletes the VMs, VMIs and replica sets of other specs: an uninstallation lists all namespaces.
func deleteGuests() {
	GinkgoHelper()
	vms, vmis := &v1.VirtualMachineList{}, &v1.VirtualMachineInstanceList{}
	Expect(K8sClient.List(ctx, vms)).To(Succeed())
	Expect(K8sClient.List(ctx, vmis)).To(Succeed())
	sets := &v1.VirtualMachineInstanceReplicaSetList{}
	Expect(K8sClient.List(ctx, sets)).To(Succeed())
	pools := &poolv1.VirtualMachinePoolList{}
	Expect(K8sClient.List(ctx, pools)).To(Succeed())
	var guests []client.Object
	for i := range pools.Items {
		guests = append(guests, &pools.Items[i])
	}
	for i := range sets.Items {
		guests = append(guests, &sets.Items[i])
	}
	for i := range vms.Items {
		guests = append(guests, &vms.Items[i])
	}
	for i := range vmis.Items {
		guests = append(guests, &vmis.Items[i])
	}
	for _, guest := range guests {
		guest.SetFinalizers(nil)
		Expect(client.IgnoreNotFound(K8sClient.Update(ctx, guest))).To(Succeed())
		Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, guest))).To(Succeed())
	}
}

// removeVMIFinalizers removes a VMI's finalizers, as its reconciler does when the guest has shut down.
func removeVMIFinalizers(vmi *v1.VirtualMachineInstance) {
	GinkgoHelper()
	Expect(K8sClient.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
	vmi.Finalizers = nil
	Expect(K8sClient.Update(ctx, vmi)).To(Succeed())
}
