// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshotcontent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/test/builder"
)

// The errors of VolumeSnapshots that are refused, and of requests that fail.
var (
	errForbidden = apierrors.NewForbidden(csi.GroupVersion.WithResource("volumesnapshots").GroupResource(), "x",
		errors.New("exceeded quota: few"))
	errDenied  = apierrors.NewBadRequest(`admission webhook "policy.example" denied the request`)
	errInvalid = apierrors.NewInvalid(csi.GroupVersion.WithKind(csi.Kind).GroupKind(), "x", nil)
	errAway    = apierrors.NewServiceUnavailable("the API server is away")
)

// storedSnapshots reads the VolumeSnapshots of a client.
type storedSnapshots struct {
	kit.VolumeSnapshots
	from client.Reader
	// without is whether there are no VolumeSnapshotClasses, and stale is whether no VolumeSnapshot is in the cache yet.
	without, stale bool
}

func (s *storedSnapshots) Get(ctx context.Context, key client.ObjectKey) (*csi.VolumeSnapshot, error) {
	found := &csi.VolumeSnapshot{}
	if s.stale {
		return nil, apierrors.NewNotFound(csi.GroupVersion.WithResource("volumesnapshots").GroupResource(), key.Name)
	}
	return found, s.from.Get(ctx, key, found)
}

func (s *storedSnapshots) Classes(context.Context) ([]csi.VolumeSnapshotClass, error) {
	if s.without {
		return nil, nil
	}
	return []csi.VolumeSnapshotClass{{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Driver: "csi"}}, nil
}

func (*storedSnapshots) Preferred(context.Context) (map[string]string, error) { return nil, nil }

// world is a cluster with the content of a snapshot of a VM with three disks, of which nothing has been taken.
type world struct {
	Reconciler
	t         *testing.T
	snapshots *storedSnapshots
	content   client.ObjectKey
	vmi       client.ObjectKey

	mu sync.Mutex // VolumeSnapshots are created concurrently
	// refuse returns the error of the n-th creation of a VolumeSnapshot, from 1, or of its dry run.
	refuse func(n int, dry bool) error
	count  map[bool]int
}

func newWorld(t *testing.T, guest capture.Guest) *world {
	t.Helper()
	created := metav1.NewTime(time.Unix(1000, 0))
	vmi := builder.MakeVMI("vm").PVC("a", "a").PVC("b", "b").PVC("c", "c")
	vm := builder.MakeVM("vm").UID("vm-uid").Template(vmi).Obj()
	vm.Status.SnapshotInProgress = ptr.To("snap")
	of := &v1beta1.VirtualMachineSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: "snap", UID: "s1",
		CreationTimestamp: created}}
	storage := capture.Storage{Claims: map[string]*corev1.PersistentVolumeClaim{},
		Drivers: map[string]string{"fast": "csi"}}
	storage.Classes, _ = (&storedSnapshots{}).Classes(t.Context())
	for _, name := range []string{"a", "b", "c"} {
		claim := builder.MakePVC(name).Bound("1Gi").Obj()
		claim.Spec.StorageClassName = ptr.To("fast")
		storage.Claims[name] = claim
	}
	content, _ := capture.Content(of, capture.Stored{VM: vm, Volumes: capture.Volumes(vm, storage)})
	content.CreationTimestamp = created
	if err := capture.SetGuest(content, guest); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, v1beta1.AddToScheme, csi.AddToScheme,
		storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, content: client.ObjectKeyFromObject(content), vmi: client.ObjectKeyFromObject(vm),
		count: map[bool]int{}}
	objects := []client.Object{vm, of, content,
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "csi"}}
	if guest.Online {
		objects = append(objects, builder.MakeVMI("vm").OwnedBy(vm).Obj())
	}
	// The default tracker knows no unsigned numbers, which VMIs have.
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	store := fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithObjects(objects...).
		WithStatusSubresource(content, &v1.VirtualMachineInstance{}, &csi.VolumeSnapshot{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: w.create, List: noMigrations}).Build()
	w.snapshots = &storedSnapshots{from: store}
	w.Reconciler = Reconciler{
		Client: store, APIReader: store, Recorder: events.NewFakeRecorder(100), VolumeSnapshots: w.snapshots,
		Clock: clocktesting.NewFakePassiveClock(created.Add(time.Second)),
	}
	return w
}

// noMigrations lists no migrations. The fake supports no inequality of fields.
func noMigrations(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*v1.VirtualMachineInstanceMigrationList); ok {
		return nil
	}
	return c.List(ctx, list, options...)
}

func (w *world) create(
	ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
) error {
	dry := len((&client.CreateOptions{}).ApplyOptions(options).DryRun) > 0
	w.mu.Lock()
	w.count[dry]++
	n := w.count[dry]
	w.mu.Unlock()
	if w.refuse != nil {
		if err := w.refuse(n, dry); err != nil {
			return err
		}
	}
	return c.Create(ctx, object, options...)
}

// refuseFrom refuses VolumeSnapshots from the n-th on, or their dry runs.
func (w *world) refuseFrom(first int, dry bool, err error) {
	w.count = map[bool]int{}
	w.refuse = func(n int, isDry bool) error {
		if isDry == dry && n >= first {
			return err
		}
		return nil
	}
}

func (w *world) reconcile() (ctrl.Result, error) {
	return w.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: w.content})
}

// expectRefused reconciles, and expects that the status has the problem, and that it is tried again soon.
func (w *world) expectRefused(problem string) {
	w.t.Helper()
	result, err := w.reconcile()
	if err != nil || result.RequeueAfter != takeRetry {
		w.t.Errorf("reconciled again after %s, %v", result.RequeueAfter, err)
	}
	if got := w.problem(); !strings.Contains(got, problem) {
		w.t.Errorf("the status has the error %q, and not %q", got, problem)
	}
}

// expectAccepted reconciles, and expects that the status has no error any more.
func (w *world) expectAccepted() {
	w.t.Helper()
	w.refuse = nil
	if _, err := w.reconcile(); err != nil {
		w.t.Fatal(err)
	}
	if got := w.problem(); got != "" {
		w.t.Errorf("the status has the error %q", got)
	}
}

func (w *world) get(key client.ObjectKey, object client.Object) {
	w.t.Helper()
	if err := w.Client.Get(w.t.Context(), key, object); err != nil {
		w.t.Fatal(err)
	}
}

// problem returns the error in the content's status, or "".
func (w *world) problem() string {
	w.t.Helper()
	content := &v1beta1.VirtualMachineSnapshotContent{}
	w.get(w.content, content)
	if content.Status == nil || content.Status.Error == nil {
		return ""
	}
	return ptr.Deref(content.Status.Error.Message, "")
}

// expectFreeze expects how the freeze ends, or "none".
func (w *world) expectFreeze(want string) {
	w.t.Helper()
	vmi, got := &v1.VirtualMachineInstance{}, "none"
	w.get(w.vmi, vmi)
	if vmi.Status.SnapshotFreeze != nil {
		got = string(vmi.Status.SnapshotFreeze.End)
	}
	if got != want {
		w.t.Errorf("the freeze is %q, and not %q", got, want)
	}
}

func (w *world) expectTaken(want int) {
	w.t.Helper()
	list := &csi.VolumeSnapshotList{}
	if err := w.Client.List(w.t.Context(), list); err != nil {
		w.t.Fatal(err)
	}
	if len(list.Items) != want {
		w.t.Errorf("there are %d VolumeSnapshots, and not %d", len(list.Items), want)
	}
}

// frozen begins a freeze, and reports the guest as frozen, as the agent does.
func (w *world) frozen() {
	w.t.Helper()
	w.expectAccepted()
	w.expectFreeze("")
	vmi := &v1.VirtualMachineInstance{}
	w.get(w.vmi, vmi)
	intent := vmi.Status.SnapshotFreeze
	vmi.Status.SnapshotFreezeRecord = &v1.SnapshotFreezeRecord{ID: intent.ID, Deadline: intent.Deadline,
		Stage: v1.SnapshotFreezeFrozen}
	if err := w.Client.Status().Update(w.t.Context(), vmi); err != nil {
		w.t.Fatal(err)
	}
}

var running = capture.Guest{Online: true, Agent: true}

// refusals are the errors by which the API server refuses an object, by what the status says of them.
var refusals = map[string]error{"exceeded quota: few": errForbidden, "denied the request": errDenied,
	"is invalid": errInvalid}

func TestAGuestIsNotFrozenForWhatIsRefused(t *testing.T) {
	for name, err := range refusals {
		w := newWorld(t, running)
		w.refuseFrom(3, true, err)
		w.expectRefused(name)
		w.expectFreeze("none")
		w.expectRefused(name)
		w.expectTaken(0)
		w.expectAccepted()
		w.expectFreeze("")
		w.expectTaken(0)
	}
}

func TestAWebhookWithoutDryRunsDoesNotHoldUpASnapshot(t *testing.T) {
	w := newWorld(t, running)
	w.refuseFrom(3, true, apierrors.NewBadRequest(`admission webhook "effects.example" does not support dry run`))
	w.frozen()
	w.expectAccepted()
	w.expectTaken(3)
}

func TestAGuestIsThawedWhenAVolumeSnapshotIsRefused(t *testing.T) {
	for name, err := range refusals {
		w := newWorld(t, running)
		w.frozen()
		w.refuseFrom(3, false, err)
		w.expectRefused("create VolumeSnapshot default/vmsnapshot-s1-volume-")
		w.expectFreeze(string(v1.SnapshotFreezeCancel))
		w.expectTaken(2)
		w.refuseFrom(1, false, err)
		w.expectRefused(name)
		w.expectTaken(2)
		w.expectAccepted()
		w.expectFreeze(string(v1.SnapshotFreezeCancel))
		w.expectTaken(3)
	}
}

func TestAGuestIsThawedWhenAClassIsGone(t *testing.T) {
	w := newWorld(t, running)
	w.frozen()
	w.snapshots.without = true
	w.expectRefused("there is no VolumeSnapshotClass")
	w.expectFreeze(string(v1.SnapshotFreezeCancel))
	w.expectTaken(0)
	w.snapshots.without = false
	w.expectAccepted()
	w.expectTaken(3)
}

func TestAGuestStaysFrozenWhenAQuotaRefusesWhatExists(t *testing.T) {
	w := newWorld(t, running)
	w.frozen()
	w.expectAccepted()
	w.expectTaken(3)
	w.snapshots.stale = true
	w.refuseFrom(1, false, errForbidden)
	if _, err := w.reconcile(); err != nil || w.problem() != "" {
		t.Errorf("got %v, and the status has the error %q", err, w.problem())
	}
	w.expectFreeze("")
}

func TestAGuestStaysFrozenWhenARequestFails(t *testing.T) {
	w := newWorld(t, running)
	w.frozen()
	w.refuseFrom(3, false, errAway)
	if _, err := w.reconcile(); !errors.Is(err, errAway) {
		t.Errorf("got %v", err)
	}
	w.expectFreeze("")
	w.expectTaken(2)
	w.expectAccepted()
	w.expectFreeze("")
	w.expectTaken(3)
}

func TestAGuestIsNotFrozenWhenADryRunFails(t *testing.T) {
	w := newWorld(t, running)
	w.refuseFrom(1, true, errAway)
	if _, err := w.reconcile(); !errors.Is(err, errAway) {
		t.Errorf("got %v", err)
	}
	w.expectFreeze("none")
}

func TestAStoppedVMReportsWhatIsRefused(t *testing.T) {
	w := newWorld(t, capture.Guest{})
	w.refuseFrom(2, false, errForbidden)
	w.expectRefused("exceeded quota: few")
	w.expectTaken(1)
	w.expectAccepted()
	w.expectTaken(3)
	if w.count[true] > 0 {
		t.Error("it was tried before, though no guest is frozen")
	}
}
