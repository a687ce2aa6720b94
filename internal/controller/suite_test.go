// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// What each envtest of this package uses: a real API server with our CRDs, and no controllers.
var (
	ctx       = context.Background()
	cfg       *rest.Config
	testEnv   *envtest.Environment
	audit     *rights.Audit
	k8sClient client.WithWatch
	// asController has the rights of virt-controller's account. The code under test uses it; the test itself uses k8sClient.
	asController     client.WithWatch
	controllerConfig *rest.Config
	shipped          *rights.Shipped
)

func TestControllers(t *testing.T) {
	// As with an API server without streaming lists: informers list, then watch.
	t.Setenv("KUBE_FEATURE_WatchListClient", "false")
	RegisterFailHandler(Fail)
	// Gomega's default of one second is too short on a busy computer.
	SetDefaultEventuallyTimeout(30 * time.Second)
	RunSpecs(t, "Controllers")
}

var _ = BeforeSuite(func() {
	logf.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(),
		"set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	Expect(v1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(poolv1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(cdi.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(v1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(snapshotv1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(clonev1beta1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(csi.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(exportv1.AddToScheme(scheme.Scheme)).To(Succeed())
	Expect(backupv1alpha1.AddToScheme(scheme.Scheme)).To(Succeed())
	testEnv = apiserver.New(filepath.Join("..", "..", "config", "crd", "bases"), filepath.Join("..", "..", "test", "importer"))
	// Without the gate the API server drops fields that a kubelet with it reports.
	testEnv.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "ImageVolumeWithDigest=true")
	// As on OpenShift: setting blockOwnerDeletion needs the right to update the owner's finalizers.
	testEnv.ControlPlane.GetAPIServer().Configure().Append("enable-admission-plugins", "OwnerReferencesPermissionEnforcement")
	var err error
	audit, err = rights.NewAudit(testEnv, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	cfg, err = testEnv.Start()
	Expect(err).NotTo(HaveOccurred())
	k8sClient, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())

	shipped, err = rights.Ship(ctx, filepath.Join("..", ".."), k8sClient)
	Expect(err).NotTo(HaveOccurred())
	controllerConfig = rights.Controller.Impersonate(cfg, nil)
	asController, err = client.NewWithWatch(controllerConfig, client.Options{Scheme: scheme.Scheme})
	Expect(err).NotTo(HaveOccurred())
})

var _ = AfterSuite(func() {
	if testEnv != nil {
		Expect(testEnv.Stop()).To(Succeed())
		Expect(audit.Check(filepath.Join("..", ".."), "internal/controller", !failed)).To(Succeed())
	}
})

// inRepository returns the path of a file of the repository.
func inRepository(path ...string) string {
	return filepath.Join(append([]string{"..", ".."}, path...)...)
}

// failed reports whether a spec has failed.
var failed bool

var _ = ReportAfterEach(func(report SpecReport) { failed = failed || report.Failed() })

// NewNamespace creates a namespace for one spec. envtest never deletes the contents of a namespace, so names are not reused.
func NewNamespace() string {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-"}}
	Expect(k8sClient.Create(ctx, ns)).To(Succeed())
	return ns.Name
}

// NewInstallNamespace creates a namespace in which virt-controller's account has the rights that it has in the install namespace.
func NewInstallNamespace() string {
	GinkgoHelper()
	namespace := NewNamespace()
	Expect(shipped.InstallIn(ctx, k8sClient, namespace)).To(Succeed())
	return namespace
}

// ExpectCreated creates objects, with the status that they have in memory.
func ExpectCreated(objects ...client.Object) {
	GinkgoHelper()
	for _, object := range objects {
		wanted, ok := object.DeepCopyObject().(client.Object)
		Expect(ok).To(BeTrue())
		Expect(k8sClient.Create(ctx, object)).To(Succeed())
		wanted.SetResourceVersion(object.GetResourceVersion())
		wanted.SetUID(object.GetUID())
		switch wanted := wanted.(type) {
		case *v1.VirtualMachineInstance:
			if wanted.Status.Phase == v1.VmPhaseUnset {
				continue // the test wants the schema's default
			}
			ExpectStatus(wanted)
		case *corev1.PersistentVolumeClaim:
			ExpectStatus(wanted)
		case *v1.VirtualMachineInstanceMigration:
			// The cluster's limit counts the unfinished migrations of all namespaces.
			DeferCleanup(removeMigration, wanted)
		}
	}
}

// removeMigration deletes a migration, whose finalizer no reconciler removes once its spec has ended.
func removeMigration(m *v1.VirtualMachineInstanceMigration) {
	GinkgoHelper()
	noFinalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	Expect(client.IgnoreNotFound(k8sClient.Patch(ctx, m, noFinalizers))).To(Succeed())
	Expect(client.IgnoreNotFound(k8sClient.Delete(ctx, m))).To(Succeed())
}

// ExpectStatus writes the status of an object, in place of its owner.
func ExpectStatus(object client.Object) {
	GinkgoHelper()
	current, ok := object.DeepCopyObject().(client.Object)
	Expect(ok).To(BeTrue())
	object.SetResourceVersion(ExpectExists(current).GetResourceVersion())
	object.SetManagedFields(nil)
	Expect(k8sClient.Status().Update(ctx, object)).To(Succeed())
}

// ExpectExists reads an object from the API server.
func ExpectExists[T client.Object](object T) T {
	GinkgoHelper()
	Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
	return object
}

// ExpectGone expects that the object no longer exists.
func ExpectGone(object client.Object) {
	GinkgoHelper()
	err := k8sClient.Get(ctx, client.ObjectKeyFromObject(object), object)
	Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%T %s is still there: %v", object, object.GetName(), err)
}

// Writes is a client that logs the write requests made through it.
type Writes struct {
	client.WithWatch
	// Requests are like "patch VirtualMachineInstance/status".
	Requests []string
	// Fail, if set, is called before each write; the write returns its error.
	Fail func(request string) error
	// Blind, if set, makes objects invisible to reads, as a stale cache would.
	Blind func(key client.ObjectKey, object client.Object) bool
	// Stale, if set, is what reads of this object return, as a stale cache would.
	Stale client.Object
	// StaleList, if set, is what lists of its kind return, as a stale cache would.
	StaleList client.ObjectList

	mu sync.Mutex // reconcilers write from several goroutines
}

// NewWrites returns a client that logs writes. It writes with virt-controller's rights and reads with the test's: reconcilers
// read from a cache, which needs no right to get.
func NewWrites() *Writes {
	w := &Writes{}
	w.WithWatch = interceptor.NewClient(asController, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if w.Blind != nil && w.Blind(key, o) {
				return apierrors.NewNotFound(v1.GroupVersion.WithResource("hidden").GroupResource(), key.Name)
			}
			if w.Stale != nil && reflect.TypeOf(o) == reflect.TypeOf(w.Stale) && key == client.ObjectKeyFromObject(w.Stale) {
				reflect.ValueOf(o).Elem().Set(reflect.ValueOf(w.Stale.DeepCopyObject()).Elem())
				return nil
			}
			return reads(c, o).Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if w.StaleList != nil && reflect.TypeOf(list) == reflect.TypeOf(w.StaleList) {
				reflect.ValueOf(list).Elem().Set(reflect.ValueOf(w.StaleList.DeepCopyObject()).Elem())
				return nil
			}
			return listIndexed(ctx, reads(c, list), list, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.write("create", o, "", func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.write("delete", o, "", func() error { return c.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.write("update", o, "", func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.write("patch", o, "", func() error { return c.Patch(ctx, o, p, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.write("update", o, "/"+sub, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption,
		) error {
			return w.write("patch", o, "/"+sub, func() error { return c.SubResource(sub).Patch(ctx, o, p, opts...) })
		},
	})
	return w
}

// reads returns the client that reads an object. A manager's client reads unstructured objects from the API server.
func reads(live client.WithWatch, object runtime.Object) client.WithWatch {
	if _, ok := object.(runtime.Unstructured); ok {
		return live
	}
	return k8sClient
}

func (w *Writes) write(verb string, object client.Object, sub string, do func() error) error {
	gvk, err := w.GroupVersionKindFor(object)
	if err != nil {
		return err
	}
	request := fmt.Sprintf("%s %s%s", verb, gvk.Kind, sub)
	if err := w.note(request); err != nil {
		return err
	}
	return do()
}

func (w *Writes) note(request string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Requests = append(w.Requests, request)
	if w.Fail == nil {
		return nil
	}
	return w.Fail(request)
}

// Take returns the requests so far and clears them.
func (w *Writes) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	requests := w.Requests
	w.Requests = nil
	return requests
}

// ExpectWritten expects these requests since the last call, each as often as it is listed: their number is the write budget,
// and their order is free.
func (w *Writes) ExpectWritten(requests ...string) {
	GinkgoHelper()
	Expect(w.Take()).To(ConsistOf(requests))
}

// ExpectWrittenInOrder expects these requests in this order. A caller explains what depends on the order.
func (w *Writes) ExpectWrittenInOrder(requests ...string) {
	GinkgoHelper()
	Expect(w.Take()).To(Equal(requests))
}

// ErrInjected is the error with which tests make requests fail.
var ErrInjected = errors.New("injected by the test")
