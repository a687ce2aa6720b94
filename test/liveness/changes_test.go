// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/csi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/storage/volumesnapshot"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/decide/liveupdate"
	"github.com/vireo-project/vireo/internal/vmistatus"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
)

// TestChanges changes each leaf of the template of a VM whose guest runs, and compares what virt-controller does with
// the table.
func TestChanges(t *testing.T) {
	used := map[string]bool{}
	for _, l := range leavesOf(reflect.TypeFor[v1.VirtualMachineInstanceSpec]()) {
		entry := liveupdate.EntryOf(l.path)
		if entry == nil {
			t.Errorf("spec.%s has no entry in the table of package liveupdate", l.path)
			continue
		}
		used[entry.Path] = true
		t.Run(l.path, func(t *testing.T) {
			t.Parallel()
			for _, rollout := range []bool{true, false} {
				want := entry.Effect
				if !rollout && want == liveupdate.Restart {
					continue
				}
				if entry.Rollout && !rollout {
					want = liveupdate.Restart
				}
				got, err := effectOf(l, rollout)
				if err != nil {
					t.Fatal(err)
				}
				if got.effect != want || want == liveupdate.Restart && !got.names(l.path) {
					t.Errorf("rollout %t: the table says %s, virt-controller does %+v", rollout, want, got)
				}
			}
		})
	}
	for i := range liveupdate.Entries {
		if path := liveupdate.Entries[i].Path; !used[path] {
			t.Errorf("%s is in the table of package liveupdate, and no leaf of a VMI's spec uses the entry", path)
		}
	}
}

// observed is what virt-controller did with a change.
type observed struct {
	effect  liveupdate.Effect
	message string
}

// names reports whether the message names a leaf, or something above it.
func (o observed) names(path string) bool {
	for _, field := range liveupdate.FieldsIn(o.message) {
		if field = liveupdate.Generic(field); liveupdate.Covers(field, path) || field == strings.TrimSuffix(path, ".name") {
			return true
		}
	}
	return false
}

// effectOf changes a leaf, reports what virt-controller did with the running VMI, and checks that no restart is
// required any more when the change is taken back.
func effectOf(l leaf, rollout bool) (observed, error) {
	before, now, err := changeOf(l)
	if err != nil {
		return observed{}, err
	}
	w := newChangedWorld(rollout)
	if err := w.start(before); err != nil {
		return observed{}, err
	}
	if err := w.change(now); err != nil {
		return observed{}, err
	}
	seen, err := w.observe(l, now)
	if err != nil || seen.effect != liveupdate.Restart {
		return seen, err
	}
	if err := w.change(before); err != nil {
		return observed{}, err
	}
	after, err := w.observe(l, before)
	if after.effect == liveupdate.Restart {
		return observed{}, fmt.Errorf("the change was taken back, and a restart is still required: %s", after.message)
	}
	return seen, err
}

// observe reports what virt-controller did with the change of a leaf.
func (w *changedWorld) observe(l leaf, now *v1.VirtualMachineInstanceSpec) (observed, error) {
	for _, c := range w.vm.Status.Conditions {
		switch {
		case c.Type == v1.VirtualMachineRestartRequired && c.Status == corev1.ConditionTrue:
			return observed{effect: liveupdate.Restart, message: c.Message}, nil
		case c.Type == v1.VirtualMachineFailure:
			return observed{message: c.Message}, nil
		}
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := w.client.Get(context.Background(), client.ObjectKeyFromObject(w.vm), vmi); err != nil {
		return observed{}, err
	}
	has, wanted := at(reflect.ValueOf(&vmi.Spec), l.path), at(reflect.ValueOf(now.DeepCopy()), l.path)
	switch {
	case !equality.Semantic.DeepEqual(has.Interface(), wanted.Interface()):
		return observed{message: "nothing"}, nil
	// The VMI's reconciler compares it with the Pod.
	case vmistatus.MovesVolumes(&vmi.Status), l.path == "networks[].multus.networkName":
		return observed{effect: liveupdate.Migration}, nil
	default:
		return observed{effect: liveupdate.Live}, nil
	}
}

// changeOf returns two specs that differ in a leaf.
func changeOf(l leaf) (before, now *v1.VirtualMachineInstanceSpec, err error) {
	without, err := specOf(base, sceneOf(l.path))
	if err != nil {
		return nil, nil, fmt.Errorf("scene: %w", err)
	}
	if fragment, ok := variants[l.path]; ok {
		with, err := specOf(base, sceneOf(l.path), fragment)
		if err != nil {
			return nil, nil, err
		}
		if !equality.Semantic.DeepEqual(without.Spec, with.Spec) {
			return &without.Spec, &with.Spec, nil
		}
		with, err = specOf(base)
		return &without.Spec, &with.Spec, err
	}
	at(reflect.ValueOf(&without.Spec), l.path)
	texts := samples(l.typ)
	if text, ok := values[l.path]; ok {
		texts = []string{text}
	}
	for _, text := range texts {
		with, err := valued(l, text)(without.DeepCopy())
		if err != nil {
			return nil, nil, err
		}
		if !equality.Semantic.DeepEqual(without.Spec, with.Spec) {
			return &without.Spec, &with.Spec, nil
		}
	}
	return nil, nil, errors.New("no sample of its type differs from what the scene has")
}

// changedWorld is a VM, and virt-controller.
type changedWorld struct {
	client  client.Client
	rollout bool
	vm      *v1.VirtualMachine
}

// worldScheme has the kinds of a changedWorld.
var worldScheme = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
})

func newChangedWorld(rollout bool) *changedWorld {
	scheme := worldScheme()
	claims := make([]client.Object, 0, 2)
	for _, name := range []string{"c", "sample"} {
		claims = append(claims, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeMode: ptr.To(corev1.PersistentVolumeBlock),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}},
			Status: corev1.PersistentVolumeClaimStatus{
				Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		})
	}
	// Not the default tracker: that of managed fields knows no uint64.
	revision := &metav1.PartialObjectMetadata{}
	revision.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ControllerRevision"))
	tracker := clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).UniversalDecoder())
	return &changedWorld{
		rollout: rollout,
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(tracker).WithObjects(claims...).
			WithIndex(revision, kit.CreatedByIndex, kit.CreatedBy).
			WithIndex(&v1.VirtualMachineInstanceMigration{}, kit.VMIIndex, func(o client.Object) []string {
				return []string{o.(*v1.VirtualMachineInstanceMigration).Spec.VMIName}
			}).WithStatusSubresource(&v1.VirtualMachine{}, &v1.VirtualMachineInstance{}).Build(),
	}
}

// start starts a VM. Its VMI is as virt-handler and admission leave it.
func (w *changedWorld) start(spec *v1.VirtualMachineInstanceSpec) error {
	ctx := context.Background()
	w.vm = &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "vm", UID: "1f6f0a52-7e6d-4c7c-9a1b-5b0f9d0c1e11", Generation: 1,
			Finalizers: []string{v1.VirtualMachineControllerFinalizer},
		},
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyAlways), UpdateVolumesStrategy: ptr.To(v1.UpdateVolumesStrategyMigration),
			Template: &v1.VirtualMachineInstanceTemplateSpec{Spec: *spec.DeepCopy()},
		},
	}
	if err := w.client.Create(ctx, w.vm); err != nil {
		return err
	}
	if err := w.reconcile(); err != nil {
		return err
	}
	vmi := &v1.VirtualMachineInstance{}
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(w.vm), vmi); err != nil {
		return err
	}
	// It sets the defaults. The samples of some leaves are not valid, which is no matter here.
	_ = webhookv1.Admit(vmi, clusterOf())
	if err := w.client.Update(ctx, vmi); err != nil {
		return err
	}
	w.run(vmi)
	if err := w.client.Status().Update(ctx, vmi); err != nil {
		return err
	}
	return w.reconcile()
}

// run sets the status of a VMI whose guest runs.
func (w *changedWorld) run(vmi *v1.VirtualMachineInstance) {
	describeClaims(vmi)
	for i := range vmi.Status.VolumeStatus {
		status := &vmi.Status.VolumeStatus[i]
		status.Size, status.PersistentVolumeClaimInfo.AccessModes = 1<<30,
			[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil {
		vmi.Status.CurrentCPUTopology = &v1.CPUTopology{Sockets: cpu.Sockets, Cores: cpu.Cores, Threads: cpu.Threads}
	}
	if memory := vmi.Spec.Domain.Memory; memory != nil {
		vmi.Status.Memory = &v1.MemoryStatus{GuestAtBoot: memory.Guest, GuestCurrent: memory.Guest,
			GuestRequested: memory.Guest}
	}
	vmi.Status.VirtualMachineRevisionName = v1.StartRevisionName(w.vm.UID, w.vm.Generation)
	vmistatus.SetPhase(&vmi.Status, v1.Running, metav1.Now())
}

// change changes the spec of the template, and lets virt-controller reconcile the VM. Volumes need several steps.
func (w *changedWorld) change(spec *v1.VirtualMachineInstanceSpec) error {
	w.vm.Spec.Template.Spec = *spec.DeepCopy()
	w.vm.Generation++
	if err := w.client.Update(context.Background(), w.vm); err != nil {
		return err
	}
	for range 4 {
		if err := w.reconcile(); err != nil {
			return err
		}
	}
	return nil
}

func (w *changedWorld) reconcile() error {
	ctx := context.Background()
	if err := w.client.Get(ctx, client.ObjectKeyFromObject(w.vm), w.vm); err != nil {
		return err
	}
	s := &virtualmachine.Scope{
		Client: w.client, APIReader: w.client, Recorder: events.NewFakeRecorder(100), DataVolumes: noImporter{},
		VolumeSnapshots: noSnapshots{},
		Now:             time.Now(), VM: w.vm,
		Settings: virtualmachine.Settings{LiveUpdate: w.rollout, CPUAllocationRatio: 10},
	}
	if err := s.Load(ctx); err != nil {
		return err
	}
	if err := virtualmachine.Run(ctx, s); err != nil {
		return err
	}
	return w.client.Get(ctx, client.ObjectKeyFromObject(w.vm), w.vm)
}

// noImporter is a cluster without DataVolumes.
type noImporter struct{}

func (noImporter) Get(context.Context, client.ObjectKey) (*cdi.DataVolume, error) {
	return nil, datavolume.ErrNotInstalled
}

// noSnapshots is a cluster without VolumeSnapshots.
type noSnapshots struct{}

func (noSnapshots) Get(context.Context, client.ObjectKey) (*csi.VolumeSnapshot, error) {
	return nil, volumesnapshot.ErrNotInstalled
}

func (noSnapshots) Classes(context.Context) ([]csi.VolumeSnapshotClass, error) { return nil, nil }

func (noSnapshots) Preferred(context.Context) (map[string]string, error) { return nil, nil }

// TestDocumentOfChanges compares the list of changes in the page of VirtualMachines with the table; -update writes it.
func TestDocumentOfChanges(t *testing.T) {
	const page, begin, end = "../../docs/spec/virtualmachine.md", "<!-- made by go test ./test/liveness -update -->\n",
		"<!-- end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q and %q", page, begin, end)
	}
	want := before + begin + renderChanges() + end + after
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is stale: go test ./test/liveness -update", page)
	}
}

// renderChanges lists the fields whose changes a running guest can have, and those that have a note. The others need a
// restart.
func renderChanges() string {
	out := &strings.Builder{}
	fmt.Fprint(out, "| field of `template.spec` | effect | condition | |\n|---|---|---|---|\n")
	var others []string
	for i := range liveupdate.Entries {
		e := &liveupdate.Entries[i]
		if e.Effect == liveupdate.Restart && e.Note == "" {
			others = append(others, "`"+e.Path+"`")
			continue
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", e.Path, e.Effect, e.Condition(), e.Note)
	}
	for others := range slices.Chunk(others, 6) {
		fmt.Fprintf(out, "| %s | %s | | |\n", strings.Join(others, ", "), liveupdate.Restart)
	}
	return out.String()
}
