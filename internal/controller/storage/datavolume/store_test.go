// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package datavolume

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	soon  = time.Minute
	never = time.Second
)

// cluster is an API server without an importer, and a Store that follows it.
type cluster struct {
	*WithT
	env   *envtest.Environment
	store *Store
	// queue contains the keys that the Store's source enqueued; "/" stands for all objects.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// requests has an element for each request for DataVolumes.
	requests chan struct{}
}

func start(t *testing.T) *cluster {
	t.Helper()
	g := NewWithT(t)
	g.Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(),
		"set KUBEBUILDER_ASSETS to the directory of kube-apiserver and etcd, or use make test")
	g.Expect(cdi.AddToScheme(scheme.Scheme)).To(Succeed())
	c := &cluster{WithT: g, env: apiserver.New(), requests: make(chan struct{}, 10000)}
	root := filepath.Join("..", "..", "..", "..")
	rights.AuditTest(t, c.env, root, "internal/controller/storage/datavolume")
	config, err := c.env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := c.env.Stop(); err != nil {
			t.Error(err)
		}
	})
	_, err = rights.Ship(t.Context(), root, c.client())
	g.Expect(err).NotTo(HaveOccurred())
	c.follow(t, rights.Controller.Impersonate(config, nil))
	return c
}

// follow starts the Store and the source that enqueues its changes.
func (c *cluster) follow(t *testing.T, config *rest.Config) {
	t.Helper()
	counted := rest.CopyConfig(config)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/apis/cdi.kubevirt.io/v1beta1/datavolumes" {
				c.requests <- struct{}{}
			}
			return next.RoundTrip(r)
		})
	})
	httpClient, err := rest.HTTPClientFor(counted)
	c.Expect(err).NotTo(HaveOccurred())
	c.store = NewStore(counted, httpClient, scheme.Scheme)
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	source := c.store.Source(func(_ context.Context, change Change) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName(change)}}
	})
	ctx, stop := context.WithCancel(t.Context())
	c.Expect(source.Start(ctx, c.queue)).To(Succeed())
	done := make(chan error, 1)
	go func() { done <- c.store.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waiting, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	c.Expect(source.WaitForSync(waiting)).To(Succeed())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (c *cluster) client() client.Client {
	k8s, err := client.New(c.env.Config, client.Options{Scheme: scheme.Scheme})
	c.Expect(err).NotTo(HaveOccurred())
	return k8s
}

// expectEnqueued takes keys from the queue until it gets this one.
func (c *cluster) expectEnqueued(key string) {
	c.Eventually(func() string {
		if c.queue.Len() == 0 {
			return "none"
		}
		request, _ := c.queue.Get()
		c.queue.Done(request)
		return request.String()
	}, soon, time.Millisecond).Should(Equal(key))
}

func (c *cluster) install() {
	_, err := envtest.InstallCRDs(c.env.Config,
		apiserver.Install(filepath.Join("..", "..", "..", "..", "test", "importer")))
	c.Expect(err).NotTo(HaveOccurred())
}

func (c *cluster) uninstall() {
	c.Expect(envtest.UninstallCRDs(c.env.Config, envtest.CRDInstallOptions{
		Paths: []string{filepath.Join("..", "..", "..", "..", "test", "importer")},
	})).To(Succeed())
}

func TestStoreFollowsTheImporter(t *testing.T) {
	c := start(t)
	key := client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "root"}
	get := func() error {
		_, err := c.store.Get(t.Context(), key)
		return err
	}
	c.Expect(get()).To(MatchError(ErrNotInstalled))
	c.Consistently(c.requests, never).ShouldNot(Receive(), "no requests for a kind that does not exist")

	for range 2 { // the kind may be installed again
		c.install()
		c.expectEnqueued("/")
		c.Expect(apierrors.IsNotFound(errors.Unwrap(get()))).To(BeTrue())

		k8s := c.client()
		dv := &cdi.DataVolume{}
		dv.Namespace, dv.Name = key.Namespace, key.Name
		c.Expect(k8s.Create(t.Context(), dv)).To(Succeed())
		c.expectEnqueued("default/root")
		c.Expect(get()).To(Succeed())
		dv.Status.Phase = cdi.DataVolumeSucceeded
		c.Expect(k8s.Status().Update(t.Context(), dv)).To(Succeed())
		c.expectEnqueued("default/root")
		got, err := c.store.Get(t.Context(), key)
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(Usable(got)).To(BeTrue())
		c.Expect(k8s.Delete(t.Context(), dv)).To(Succeed())
		c.expectEnqueued("default/root")

		c.uninstall()
		c.Eventually(get, soon).Should(MatchError(ErrNotInstalled))
		c.expectEnqueued("/")
		for len(c.requests) > 0 {
			<-c.requests
		}
		c.Consistently(c.requests, never).ShouldNot(Receive(), "no requests for a kind that was removed")
	}
}

func TestClientReaderWithoutTheKind(t *testing.T) {
	c := start(t)
	_, err := clientReader{c.client()}.Get(t.Context(), client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "root"})
	c.Expect(err).To(MatchError(ErrNotInstalled))
}
