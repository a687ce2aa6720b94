// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package optional

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The tests use ConfigMaps as the optional kind. That a Store follows a real API server is tested in package
// datavolume.
const crd = "configmaps.example.com"

var configMaps = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}

var errBroken = errors.New("broken")

// fakeCache is a cache whose watches may fail.
type fakeCache struct {
	*informertest.FakeInformers
	// stopped is closed, or receives an error, when the cache stops by itself.
	stopped chan error
}

// Start implements cache.Cache.
func (c *fakeCache) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-c.stopped:
		return err
	}
}

func (c *fakeCache) informer() *controllertest.FakeInformer {
	return c.InformersByGVK[configMaps].(*controllertest.FakeInformer)
}

// world is a Store and what it makes.
type world struct {
	*Store
	// prepare is called with the number of each cache, from 1, and what makes it fail.
	prepare func(n int, made *fakeCache) error

	mu      sync.Mutex
	made    []*fakeCache
	changes []Change
}

func newWorld(t *testing.T, prepare func(n int, made *fakeCache) error) (*world, context.Context) {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	w := &world{prepare: prepare}
	w.Store = NewStore(&rest.Config{}, &http.Client{}, scheme,
		Kind{CRD: crd, New: func() client.Object { return &corev1.ConfigMap{} }})
	w.caches = func(map[client.Object]cache.ByObject) (cache.Cache, error) { return w.cache(scheme) }
	w.subscribe(func(c Change) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, c)
	})
	return w, log.IntoContext(t.Context(), logr.Discard())
}

// cache makes the next cache, which is synced unless prepare says otherwise.
func (w *world) cache(scheme *runtime.Scheme) (cache.Cache, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	made := &fakeCache{
		FakeInformers: &informertest.FakeInformers{Scheme: scheme,
			InformersByGVK: map[schema.GroupVersionKind]toolscache.SharedIndexInformer{
				configMaps: controllertest.NewFakeInformer(controllertest.Synced),
			}},
		stopped: make(chan error, 1),
	}
	w.made = append(w.made, made)
	if w.prepare == nil {
		return made, nil
	}
	return made, w.prepare(len(w.made), made)
}

// count returns how many caches were made.
func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made)
}

// take returns the changes that were reported since the last call.
func (w *world) take() []Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.changes
	w.changes = nil
	return taken
}

// expect expects the error of the reader.
func (w *world) expect(t *testing.T, want error) {
	t.Helper()
	synctest.Wait()
	reader, err := w.Reader()
	if !errors.Is(err, want) || (reader == nil) != (want != nil) {
		t.Fatalf("got %v, %v, want %v", reader, err, want)
	}
}

func (w *world) isSettled() bool {
	select {
	case <-w.settled:
		return true
	default:
		return false
	}
}

// run runs a test in which time passes only while everything waits, and ends the goroutines that it has started with
// its context.
func run(
	t *testing.T, prepare func(n int, made *fakeCache) error, test func(t *testing.T, ctx context.Context, w *world),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := newWorld(t, prepare)
		ctx, stop := context.WithCancel(ctx)
		defer synctest.Wait()
		defer stop()
		test(t, ctx, w)
	})
}

// failing fails the first caches in one way.
func failing(count int, fail func(*fakeCache) error) func(int, *fakeCache) error {
	return func(n int, made *fakeCache) error {
		if n > count {
			return nil
		}
		return fail(made)
	}
}

// failures are what may fail of a watch.
var failures = map[string]func(*fakeCache) error{
	"no cache": func(*fakeCache) error { return errBroken },
	"no informer": func(c *fakeCache) error {
		c.Error = errBroken
		return nil
	},
	"the cache fails": func(c *fakeCache) error {
		c.stopped <- errBroken
		return nil
	},
	"the cache stops": func(c *fakeCache) error {
		close(c.stopped)
		return nil
	},
}

func TestAFailedWatchIsTriedAgain(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			run(t, failing(2, fail), func(t *testing.T, ctx context.Context, w *world) {
				go w.watch(ctx)
				synctest.Wait()
				if w.count() != 1 {
					t.Fatalf("%d caches at once", w.count())
				}
				w.expect(t, ErrUnknown)
				time.Sleep(2 * time.Second)
				w.expect(t, nil)
				if reader, _ := w.Reader(); reader != w.made[2] || !w.isSettled() {
					t.Errorf("got %v of %d caches", reader, w.count())
				}
				w.take()
				w.made[2].informer().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}})
				if got := w.take(); len(got) != 1 || got[0] != (Change{Namespace: "a", Name: "b"}) {
					t.Errorf("changes %v", got)
				}
			})
		})
	}
}

func TestAWatchThatKeepsFailingIsTriedLessOften(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			run(t, func(_ int, made *fakeCache) error { return fail(made) }, func(t *testing.T, ctx context.Context, w *world) {
				go w.watch(ctx)
				time.Sleep(time.Second)
				if n := w.count(); n < 3 || n > 4 {
					t.Errorf("%d attempts in the first second", n)
				}
				time.Sleep(time.Minute)
				before := w.count()
				time.Sleep(10 * time.Minute)
				if n := w.count() - before; n < 10 || n > 21 {
					t.Errorf("%d attempts in ten minutes", n)
				}
				w.expect(t, ErrUnknown)
			})
		})
	}
}

func TestACacheThatStopsLaterIsReplaced(t *testing.T) {
	run(t, nil, func(t *testing.T, ctx context.Context, w *world) {
		go w.watch(ctx)
		w.expect(t, nil)
		time.Sleep(time.Hour)
		w.take()
		w.made[0].stopped <- errBroken
		w.expect(t, ErrUnknown)
		time.Sleep(time.Second)
		w.expect(t, nil)
		if reader, _ := w.Reader(); reader != w.made[1] {
			t.Error("the reader is that of the cache that has stopped")
		}
		if got := w.take(); len(got) != 1 || got[0] != (Change{}) {
			t.Errorf("what may have changed meanwhile is not reported: %v", got)
		}
	})
}

// TestTheFirstListDelaysNobodyForLong has objects that cannot be listed.
func TestTheFirstListDelaysNobodyForLong(t *testing.T) {
	run(t, func(_ int, made *fakeCache) error {
		made.InformersByGVK[configMaps] = controllertest.NewFakeInformer()
		return nil
	}, func(t *testing.T, ctx context.Context, w *world) {
		go w.watch(ctx)
		time.Sleep(syncTimeout - time.Millisecond)
		w.expect(t, ErrUnknown)
		if w.isSettled() {
			t.Error("it has not waited")
		}
		time.Sleep(time.Second)
		if !w.isSettled() {
			t.Error("it waits for ever")
		}
		w.made[0].informer().Synced()
		time.Sleep(time.Second)
		w.expect(t, nil)
	})
}

// definitions are the CustomResourceDefinitions of a cluster.
type definitions struct {
	*informertest.FakeInformers
	mu  sync.Mutex
	uid types.UID
	// changed is the channel of Store.follow.
	changed chan struct{}
}

// Get implements cache.Cache.
func (d *definitions) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if key.Name != crd || d.uid == "" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "customresourcedefinitions"}, key.Name)
	}
	object.SetUID(d.uid)
	return nil
}

// set replaces the definition; there is none with the UID "".
func (d *definitions) set(uid types.UID) {
	d.mu.Lock()
	d.uid = uid
	d.mu.Unlock()
	d.changed <- struct{}{}
	synctest.Wait()
}

func TestAStoreFollowsTheDefinition(t *testing.T) {
	run(t, nil, func(t *testing.T, ctx context.Context, w *world) {
		d := &definitions{changed: make(chan struct{}, 1)}
		go w.follow(ctx, d, &metav1.PartialObjectMetadata{}, d.changed)
		w.expect(t, ErrAbsent)
		if !w.isSettled() || w.count() > 0 {
			t.Error("a kind that does not exist is watched")
		}
		d.set("first")
		w.expect(t, nil)
		d.set("first")
		if w.count() != 1 {
			t.Errorf("%d caches of one definition", w.count())
		}
		w.take()
		d.set("second")
		w.expect(t, nil)
		if reader, _ := w.Reader(); reader != w.made[1] {
			t.Error("the objects of the former definition are read")
		}
		w.take()
		d.set("")
		w.expect(t, ErrAbsent)
		if got := w.take(); len(got) != 1 || got[0] != (Change{}) {
			t.Errorf("changes %v", got)
		}
	})
}

// TestAFailingWatchEndsWithTheDefinition has a kind that cannot be watched and is removed.
func TestAFailingWatchEndsWithTheDefinition(t *testing.T) {
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			run(t, func(_ int, made *fakeCache) error { return fail(made) }, func(t *testing.T, ctx context.Context, w *world) {
				d := &definitions{changed: make(chan struct{}, 1)}
				go w.follow(ctx, d, &metav1.PartialObjectMetadata{}, d.changed)
				d.set("first")
				time.Sleep(time.Minute)
				w.expect(t, ErrUnknown)
				d.set("")
				w.expect(t, ErrAbsent)
				before := w.count()
				time.Sleep(time.Hour)
				w.expect(t, ErrAbsent)
				if n := w.count() - before; n > 0 {
					t.Errorf("%d more attempts", n)
				}
			})
		})
	}
}

// TestAnEndedWatchPublishesNothing has a watch that ends while another one has begun.
func TestAnEndedWatchPublishesNothing(t *testing.T) {
	w, ctx := newWorld(t, nil)
	ended, stop := context.WithCancel(ctx)
	stop()
	for _, next := range []state{{reader: &fakeCache{}}, {err: ErrAbsent}} {
		if w.publish(ended, next) {
			t.Error("it was published")
		}
	}
	if _, err := w.Reader(); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
	if !w.publish(ctx, state{err: ErrAbsent}) {
		t.Error("it was not published")
	}
}

func TestDeletionsAreReported(t *testing.T) {
	w, _ := newWorld(t, nil)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}}
	w.changed(object)
	w.changed(toolscache.DeletedFinalStateUnknown{Key: "a/b", Obj: object})
	w.changed("neither")
	if got := w.take(); len(got) != 2 || got[0] != got[1] || got[0] != (Change{Namespace: "a", Name: "b"}) {
		t.Errorf("changes %v", got)
	}
}

func TestASourceEnqueuesTheUsersOfAChange(t *testing.T) {
	w, ctx := newWorld(t, nil)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	source := w.Source(func(_ context.Context, c Change) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: c.Namespace, Name: "user-of-" + c.Name}}}
	})
	if err := source.Start(ctx, queue); err != nil {
		t.Fatal(err)
	}
	w.notify(Change{Namespace: "a", Name: "b"})
	got, _ := queue.Get()
	if got.String() != "a/user-of-b" {
		t.Errorf("got %s", got)
	}
	queue.Done(got)
}

func TestASourceWaitsUntilItsStoreHasSettled(t *testing.T) {
	w, ctx := newWorld(t, nil)
	source := w.Source(nil)
	short, stop := context.WithTimeout(ctx, time.Millisecond)
	defer stop()
	if err := source.WaitForSync(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v before it is known whether the cluster has the kind", err)
	}
	close(w.settled)
	if err := source.WaitForSync(ctx); err != nil {
		t.Error(err)
	}
}
