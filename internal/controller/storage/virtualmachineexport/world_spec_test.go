// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport_test

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/storage/virtualmachineexport"
	"github.com/vireo-project/vireo/test/builder"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// Writes of an export's reconciliation.
const (
	createSecret      = "create Secret"
	createService     = "create Service"
	createPod         = "create Pod"
	deletePod         = "delete Pod"
	patchExportStatus = "patch VirtualMachineExport/status"
)

// tokenSecret is the Secret with the token of an export that names none.
const tokenSecret = "export-token-export"

type vmExport = exportv1.VirtualMachineExport

// exports is the reconciler of exports on the suite's API server, with a clock that the spec sets.
type exports struct {
	*virtualmachineexport.Reconciler
	Steps
	events  *RecordedEvents
	clock   *clocktesting.FakePassiveClock
	ns      string
	install string
	ca      certificate.Authority
}

func newExports() *exports {
	GinkgoHelper()
	w := &exports{
		Steps:  Steps{Writes: NewWrites()},
		events: &RecordedEvents{}, clock: clocktesting.NewFakePassiveClock(time.Now()),
		ns: NewNamespace(), install: NewInstallNamespace(),
	}
	store := clusterconfig.NewStore(
		clusterconfig.WithImages(clusterconfig.Images{Exporter: "example.org/virt-exportserver:v1"}))
	w.Reconciler = &virtualmachineexport.Reconciler{
		Client: w.Writes, APIReader: AsController, Pods: ExporterPods{Reader: K8sClient}, Recorder: w.events,
		DataVolumes: DataVolumes{}, VolumeSnapshots: VolumeSnapshots{}, Config: store, Namespace: w.install, Clock: w.clock,
	}
	w.Of = w.Reconciler
	w.ca = NewAuthority(w.install, certificate.Exporter, w.clock.Now())
	return w
}

// claim creates a bound claim.
func (w *exports) claim(name string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	GinkgoHelper()
	claim := builder.MakePVC(name).Namespace(w.ns).Bound("1Gi").Obj()
	for _, change := range changes {
		change(claim)
	}
	ExpectCreated(claim)
	return claim
}

// request creates an export.
func (w *exports) request(group, kind, name string, changes ...func(*vmExport)) *vmExport {
	GinkgoHelper()
	of := &vmExport{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "export"}}
	of.Spec.Source = corev1.TypedLocalObjectReference{Kind: kind, Name: name}
	if group != "" {
		of.Spec.Source.APIGroup = ptr.To(group)
	}
	for _, change := range changes {
		change(of)
	}
	ExpectCreated(of)
	return ExpectExists(of)
}

func (w *exports) ofClaim(name string, changes ...func(*vmExport)) *vmExport {
	GinkgoHelper()
	return w.request("", "PersistentVolumeClaim", name, changes...)
}

func (w *exports) pod(of *vmExport) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "virt-export-" + of.Name}}
}

func (w *exports) service(of *vmExport) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: "virt-export-" + of.Name}}
}

// secret returns a Secret of the namespace, by its name.
func (w *exports) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name}}
}

// expectNoPod expects that an export has its Service and the Secret with its token, which clients may read in advance,
// but no Pod yet, and the namespace no other Secret and no more than these claims.
func (w *exports) expectNoPod(of *vmExport, claims ...string) {
	GinkgoHelper()
	ExpectGone(w.pod(of))
	Expect(metav1.IsControlledBy(ExpectExists(w.service(of)), of)).To(BeTrue())
	Expect(metav1.IsControlledBy(ExpectExists(w.secret(tokenSecret)), of)).To(BeTrue())
	Expect(w.names("Secret")).To(ConsistOf(tokenSecret))
	Expect(w.names("PersistentVolumeClaim")).To(ConsistOf(claims))
}

// names returns the names of the namespace's objects of a core kind.
func (w *exports) names(kind string) []string {
	GinkgoHelper()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	Expect(K8sClient.List(ctx, list, client.InNamespace(w.ns))).To(Succeed())
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out
}

// serve writes the status of a Pod that serves the export, as the kubelet does.
func (w *exports) serve(of *vmExport) {
	GinkgoHelper()
	pod := ExpectExists(w.pod(of))
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	Expect(K8sClient.Status().Update(ctx, pod)).To(Succeed())
}

// ready creates an export of a claim that is ready.
func (w *exports) ready() *vmExport {
	GinkgoHelper()
	w.claim("data")
	of := w.ofClaim("data")
	w.Step(of)
	w.serve(of)
	w.Step(of)
	Expect(DescribeExport(of)).To(HavePrefix("Ready; Ready=True PodReady"))
	w.events.Take()
	return of
}

// readyMessage returns the message of the condition Ready.
func readyMessage(of *vmExport) string {
	GinkgoHelper()
	c := conditions.Find(ExpectExists(of).Status.Conditions, exportv1.ConditionReady)
	Expect(c).NotTo(BeNil())
	return c.Message
}

// vm creates a stopped VM with a disk.
func (w *exports) vm() *v1.VirtualMachine {
	GinkgoHelper()
	vm := builder.MakeVM("vm").Namespace(w.ns).Strategy(v1.RunStrategyHalted).Template(
		builder.MakeVMI("vm").PVC("root", "root")).Obj()
	ExpectCreated(vm)
	w.claim("root")
	return ExpectExists(vm)
}
