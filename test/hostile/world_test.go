// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hostile

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/broker"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	thisNode = "node-1"
	// timeout limits the wait for what must happen. Measurements do not depend on it.
	timeout = 2 * time.Minute
	// clientQPS and clientBurst are virt-handler's.
	clientQPS, clientBurst = 200, 400
)

// world is a node with its agent, which has the rights of its account, and an API server.
type world struct {
	t           *testing.T
	api         client.WithWatch
	podsDir     string
	connections *rpc.Manager
	// writes counts the agent's writes of statuses.
	writes *writes
	// metrics are those of the guests.
	metrics *guestmetrics.Collector

	mu      sync.Mutex
	vmis    map[types.NamespacedName]*v1.VirtualMachineInstance
	changed chan struct{}
}

// newWorld starts the API server and the agent, until the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	const root = "../.."
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	rights.AuditTest(t, environment, root, "test/hostile")
	config, err := environment.Start()
	expect(t, err)
	t.Cleanup(func() { _ = environment.Stop() })
	scheme := runtime.NewScheme()
	expect(t, clientgoscheme.AddToScheme(scheme))
	expect(t, v1.AddToScheme(scheme))
	w := &world{
		t: t, podsDir: t.TempDir(), writes: &writes{}, vmis: map[types.NamespacedName]*v1.VirtualMachineInstance{},
		changed: make(chan struct{}),
	}
	w.api, err = client.NewWithWatch(config, client.Options{Scheme: scheme})
	expect(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	_, err = rights.Ship(ctx, root, w.api)
	expect(t, err)
	expect(t, rights.RestrictAgents(ctx, root, config, w.api))
	account := rights.Handler.ImpersonateOn(config, thisNode)
	account.QPS, account.Burst = clientQPS, clientBurst
	mgr, err := ctrl.NewManager(account, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.nodeName", thisNode)},
			&corev1.Pod{}:                {Field: fields.OneTermEqualSelector("spec.nodeName", thisNode)},
		}},
	})
	expect(t, err)
	w.startAgent(mgr)
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("the agent: %v", err)
		}
	})
	running.Go(func() { w.follow(ctx) })
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		t.Fatal("the agent's cache is not synchronized")
	}
	return w
}

// startAgent adds the agent to a manager.
func (w *world) startAgent(mgr ctrl.Manager) {
	incoming, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.migrationState.targetNode", thisNode)},
		},
	})
	expect(w.t, err)
	expect(w.t, mgr.Add(incoming))
	triggers := agentvmi.NewTriggers()
	responses := hypervisor.NewResponseBudget()
	privileged := broker.Start(w.t, broker.Options{PodsDir: w.podsDir, CheckPeer: broker.AnyPeer})
	w.connections, err = rpc.NewManager(rpc.Options{
		Broker: privileged, RelayDir: filepath.Join(w.t.TempDir(), "r"), Responses: responses,
	}, triggers.Enqueue)
	expect(w.t, err)
	expect(w.t, mgr.Add(w.connections))
	guests := agentvmi.New(agentvmi.Options{
		Client: &countingClient{mgr.GetClient(), w.writes}, APIReader: mgr.GetAPIReader(), Incoming: incoming, Node: thisNode,
		Facts: facts.Node{Arch: "amd64"}, Targets: peer.NewTargets(), Enqueue: triggers.Enqueue,
		Connections: agent.Connections{Manager: w.connections}, Responses: responses, Networks: noNetworks{},
		Content:  func(pod types.UID) media.Content { return privileged.Content(pod) },
		Files:    func(types.UID) agentvmi.Files { return noFiles{} },
		Config:   clusterconfig.Default,
		Recorder: &events.FakeRecorder{},
	})
	expect(w.t, guests.SetupWithManager(mgr, triggers))
	w.metrics = agent.GuestMetrics(thisNode, guests, w.connections, metrics.NewLabelFilter())
}

// follow watches the VMIs.
func (w *world) follow(ctx context.Context) {
	for ctx.Err() == nil {
		changes, err := w.api.Watch(ctx, &v1.VirtualMachineInstanceList{})
		if err != nil {
			continue
		}
		for change := range changes.ResultChan() {
			if vmi, ok := change.Object.(*v1.VirtualMachineInstance); ok && change.Type != watch.Bookmark {
				w.mu.Lock()
				w.vmis[client.ObjectKeyFromObject(vmi)] = vmi
				close(w.changed)
				w.changed = make(chan struct{})
				w.mu.Unlock()
			}
		}
	}
}

// await waits until a VMI meets a condition, which what describes.
func (w *world) await(key types.NamespacedName, what string, wanted func(*v1.VirtualMachineInstance) bool) bool {
	expired := time.After(timeout)
	for {
		w.mu.Lock()
		vmi, changed := w.vmis[key], w.changed
		w.mu.Unlock()
		if vmi != nil && wanted(vmi) {
			return true
		}
		select {
		case <-changed:
		case <-expired:
			w.t.Errorf("%s is not %s after %s", key, what, timeout)
			return false
		}
	}
}

// socketOf returns the path of a Pod's libvirtd socket.
func (w *world) socketOf(pod types.UID) string {
	dir := filepath.Join(w.podsDir, string(pod), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	expect(w.t, os.MkdirAll(dir, 0o755))
	return filepath.Join(dir, launcherpod.LibvirtSocketName)
}

func expect(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writes counts status writes by VMI, except conflicts.
type writes struct {
	mu sync.Mutex
	by map[types.NamespacedName]int64
}

func (w *writes) add(vmi types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[types.NamespacedName]int64{}
	}
	w.by[vmi]++
}

func (w *writes) of(vmi types.NamespacedName) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.by[vmi]
}

type countingClient struct {
	client.Client
	writes *writes
}

func (c *countingClient) Status() client.SubResourceWriter {
	return &countingWriter{c.Client.Status(), c.writes}
}

type countingWriter struct {
	client.SubResourceWriter
	writes *writes
}

func (c *countingWriter) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	err := c.SubResourceWriter.Patch(ctx, obj, patch, opts...)
	if !apierrors.IsConflict(err) {
		c.writes.add(client.ObjectKeyFromObject(obj))
	}
	return err
}

// noNetworks is for guests without interfaces.
type noNetworks struct{}

func (noNetworks) Forward(context.Context, *v1.VirtualMachineInstance, *corev1.Pod) error {
	return nil
}

func (noNetworks) Ensure(
	context.Context, *v1.VirtualMachineInstance, *corev1.Pod, bool,
) (map[string]domain.InterfaceFact, error) {
	return map[string]domain.InterfaceFact{}, nil
}

func (noNetworks) Advertise(*v1.VirtualMachineInstance, *corev1.Pod) error {
	return nil
}

func (noNetworks) Forget(types.UID) {}

// noFiles are the files of a Pod without devices.
type noFiles struct{}

func (noFiles) HasDevice(context.Context, string) (bool, error) { return false, nil }

func (noFiles) DirectIO(context.Context, string) (bool, error) { return true, nil }

func (noFiles) CPUs(context.Context) ([]uint, error) { return nil, nil }

func (noFiles) BlockSizes(context.Context, string) (facts.BlockSizes, error) {
	return facts.BlockSizes{}, nil
}

func (noFiles) DeviceBytes(context.Context, string) (uint64, error) { return 0, nil }

func (noFiles) OwnDevices(context.Context) error { return nil }

func (noFiles) SELinuxContext(context.Context) (string, error) {
	return "none", nil
}

func (noFiles) SetRealtime(context.Context, []uint) error { return nil }

func (noFiles) AttachVolume(context.Context, string, types.UID, bool) error { return nil }

func (noFiles) AttachDevice(context.Context, string, types.UID) error { return nil }

func (noFiles) AttachDirectory(context.Context, string, types.UID) error { return nil }

func (noFiles) DetachVolume(context.Context, string, types.UID, bool) error { return nil }

// ownedBy returns a controller reference to a VMI.
func ownedBy(vmi *v1.VirtualMachineInstance) []metav1.OwnerReference {
	controller := true
	return []metav1.OwnerReference{{
		APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vmi.Name, UID: vmi.UID, Controller: &controller,
	}}
}
