// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi_test

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/kubelet"
	"github.com/vireo-project/vireo/test/rights"
)

const thisNode = "node-1"

var (
	ctx       = context.Background()
	apiServer *rest.Config
	// api has every right. It is for the test; agents have their account's rights.
	api    client.Client
	scheme = runtime.NewScheme()
	// podsDir is the kubelet's directory with Pods.
	podsDir string
)

func TestReconciler(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: it names the directory with etcd and kube-apiserver")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Agent's VMI reconciler")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	SetDefaultEventuallyTimeout(time.Minute)
	podsDir = GinkgoT().TempDir()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	root := filepath.Join("..", "..", "..")
	environment := apiserver.New(filepath.Join(root, "config", "crd", "bases"))
	audit, err := rights.NewAudit(environment, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	apiServer, err = environment.Start()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() {
		Expect(environment.Stop()).To(Succeed())
		Expect(audit.Check(root, "internal/agent/vmi", !failed)).To(Succeed())
	})
	api, err = client.New(apiServer, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())

	_, err = rights.Ship(ctx, root, api)
	Expect(err).NotTo(HaveOccurred())
	Expect(rights.RestrictAgents(ctx, root, apiServer, api)).To(Succeed())
})

// failed reports whether a spec has failed.
var failed bool

var _ = ReportAfterEach(func(report SpecReport) { failed = failed || report.Failed() })

// agent is a running agent over the launchers of a node. Launchers outlive it.
type agent struct {
	launchers *libvirt.Node
	networks  *fakeNetworks
	recorder  *events.FakeRecorder
	// writes counts writes of VMIs' statuses without those that fail with a conflict.
	writes atomic.Int32
	// beforeWrite is called once, before the next write, which fails if it returns an error.
	beforeWrite atomic.Pointer[func(context.Context) error]
	// setRealtime is called with the vCPUs that get a realtime priority.
	setRealtime atomic.Pointer[func(vcpus []uint) error]
	// mounts are the hotplugged volumes in the launcher Pods.
	mounts mounts
	// faults ends the agent's process during a migration; it may be nil.
	faults *faults
	// afterRead is called once, after the next read from the API server.
	afterRead atomic.Pointer[func()]
	// noReads makes reads from the API server fail that do not use the cache.
	noReads atomic.Bool
	// detectsStalls enables the feature gate MigrationStallDetection.
	detectsStalls atomic.Bool
	// ahead is the offset of the agent's clock.
	ahead atomic.Int64
	// stopped is the time of its clock while it is stopped.
	stopped atomic.Pointer[time.Time]
	stop    func()
	// guests is the agent's reconciler.
	guests *agentvmi.Reconciler
}

// config returns the cluster's configuration.
func (a *agent) config() clusterconfig.Config {
	config := clusterconfig.Default()
	if a.detectsStalls.Load() {
		config.FeatureGates = clusterconfig.NewFeatureGates([]string{clusterconfig.GateStallDetection}, nil)
	}
	return config
}

// agentClock is the real clock with an offset, or a stopped one.
type agentClock struct{ agent *agent }

func (c agentClock) Now() time.Time {
	if stopped := c.agent.stopped.Load(); stopped != nil {
		return *stopped
	}
	return time.Now().Add(time.Duration(c.agent.ahead.Load()))
}

func (c agentClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// stopClock stops the agent's clock until the returned function is called.
func (a *agent) stopClock() (resume func()) {
	now := agentClock{a}.Now()
	a.stopped.Store(&now)
	return func() { a.stopped.Store(nil) }
}

// advance sets the agent's clock, which is stopped.
func (a *agent) advance(d time.Duration) {
	now := a.stopped.Load().Add(d)
	a.stopped.Store(&now)
}

// startAgent starts an agent of this node for the rest of the spec.
func startAgent(launchers *libvirt.Node) *agent {
	GinkgoHelper()
	return startAgentOn(thisNode, launchers, nil)
}

// startAgentOn starts an agent of a node for the rest of the spec. Its effects go through its faults, if it has any.
func startAgentOn(node string, launchers *libvirt.Node, f *faults) *agent {
	GinkgoHelper()
	a := &agent{
		launchers: launchers, networks: &fakeNetworks{awaited: map[types.UID]bool{}}, recorder: events.NewFakeRecorder(1000),
		faults: f,
	}
	mgr, err := ctrl.NewManager(rights.Handler.ImpersonateOn(apiServer, node), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{
			// Specs start several agents in one process.
			SkipNameValidation: ptr.To(true),
		},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.nodeName", node)},
			&corev1.Pod{}:                {Field: fields.OneTermEqualSelector("spec.nodeName", node)},
		}},
	})
	Expect(err).NotTo(HaveOccurred())
	triggers := agentvmi.NewTriggers()
	launchers.Notify(triggers.Enqueue)
	targets := peer.NewTargets()
	incoming := incomingCache(mgr, node)
	sent, err := recorder.Add(mgr, corev1.EventSource{Component: "virt-handler", Host: node})
	Expect(err).NotTo(HaveOccurred())
	guests := agentvmi.New(agentvmi.Options{
		Client: a.counting(mgr.GetClient()), APIReader: a.reading(mgr.GetAPIReader()), Incoming: incoming, Node: node,
		Facts:       facts.Node{Arch: "amd64"},
		Connections: connections{launchers, f}, Responses: hypervisor.NewResponseBudget(), Networks: a.networks,
		Address: f.address(), Peer: f.peers(), Targets: targets, Enqueue: triggers.Enqueue,
		Content:  func(pod types.UID) media.Content { return podContent(pod) },
		Files:    func(types.UID) agentvmi.Files { return fakeFiles{a} },
		Checksum: sumFile(launchers),
		Config:   a.config,
		Recorder: recorders{a.recorder, sent},
		Clock:    agentClock{a},
	})
	a.guests = guests
	Expect(guests.SetupWithManager(mgr, triggers)).To(Succeed())
	f.serve(mgr, node, incoming, targets, launchers, guests)
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer GinkgoRecover()
		Expect(mgr.Start(running)).To(Succeed())
	})
	a.stop = func() {
		cancel()
		wg.Wait()
	}
	DeferCleanup(func() { a.stop() })
	Expect(mgr.GetCache().WaitForCacheSync(running)).To(BeTrue())
	return a
}

// recorders record each event several times: for the spec, and with the agent's own recorder.
type recorders []events.EventRecorder

func (r recorders) Eventf(about, related runtime.Object, kind, reason, action, note string, args ...any) { //nolint:revive // as the interface has it
	for _, recorder := range r {
		recorder.Eventf(about, related, kind, reason, action, note, args...)
	}
}

// counting returns a client that counts writes of statuses.
func (a *agent) counting(c client.Client) client.Client { return &countingClient{Client: c, agent: a} }

type countingClient struct {
	client.Client
	agent *agent
}

func (c *countingClient) Status() client.SubResourceWriter {
	return &countingWriter{SubResourceWriter: c.Client.Status(), agent: c.agent}
}

type countingWriter struct {
	client.SubResourceWriter
	agent *agent
}

func (w *countingWriter) Patch(
	ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
) error {
	if do := w.agent.beforeWrite.Swap(nil); do != nil {
		if err := (*do)(ctx); err != nil {
			return err
		}
	}
	err := w.agent.faults.do("write", func() error { return w.SubResourceWriter.Patch(ctx, obj, patch, opts...) })
	if !apierrors.IsConflict(err) {
		// With a stale cache a write may fail, which changes nothing.
		w.agent.writes.Add(1)
	}
	return err
}

// reading returns a client of the API server that can be disconnected.
func (a *agent) reading(c client.Reader) client.Reader { return &readingClient{Reader: c, agent: a} }

type readingClient struct {
	client.Reader
	agent *agent
}

func (c *readingClient) Get(
	ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption,
) error {
	if c.agent.noReads.Load() || c.agent.faults.disconnected() {
		return errDisconnected
	}
	err := c.Reader.Get(ctx, key, obj, opts...)
	if do := c.agent.afterRead.Swap(nil); do != nil {
		(*do)()
	}
	return err
}

func (c *readingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if c.agent.noReads.Load() || c.agent.faults.disconnected() {
		return errDisconnected
	}
	return c.Reader.List(ctx, list, opts...)
}

// incomingCache has the VMIs that migrate to a node.
func incomingCache(mgr ctrl.Manager, node string) cache.Cache {
	GinkgoHelper()
	incoming, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme: scheme, Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&v1.VirtualMachineInstance{}: {Field: fields.OneTermEqualSelector("status.migrationState.targetNode", node)},
		},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(mgr.Add(incoming)).To(Succeed())
	return incoming
}

// connections opens connections to the fake's launchers.
type connections struct {
	*libvirt.Node
	faults *faults
}

func (c connections) Open(pod hypervisor.PodRef) (agentvmi.Connection, error) {
	l, err := c.Node.Open(pod)
	if err != nil {
		return nil, err
	}
	return c.faults.connection(l), nil
}

// fakeNetworks creates taps in memory.
type fakeNetworks struct {
	failure atomic.Pointer[error]
	// forwardFailure fails the forwarding of ports, and forwards counts its attempts.
	forwardFailure atomic.Pointer[error]
	forwards       atomic.Int32
	// blocked delays new networks until it is closed.
	blocked atomic.Pointer[chan struct{}]
	// missing makes the next network have no taps.
	missing atomic.Bool

	mu         sync.Mutex
	advertised map[types.UID]bool
	// awaited are the VMIs with a network here, and whether the Pod waits for their guest's migration.
	awaited map[types.UID]bool
}

func (f *fakeNetworks) Forward(_ context.Context, vmi *v1.VirtualMachineInstance, _ *corev1.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forwards.Add(1)
	if failure := f.forwardFailure.Load(); failure != nil {
		return *failure
	}
	f.awaited[vmi.UID] = false
	return nil
}

// awaits reports whether a VMI has a network here, and whether the Pod waits for its guest's migration.
func (f *fakeNetworks) awaits(vmi *v1.VirtualMachineInstance) (awaited, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	awaited, found = f.awaited[vmi.UID]
	return awaited, found
}

func (f *fakeNetworks) Ensure(_ context.Context, vmi *v1.VirtualMachineInstance, _ *corev1.Pod, awaited bool) (
	map[string]domain.InterfaceFact, error,
) {
	if failure := f.failure.Load(); failure != nil {
		return nil, *failure
	}
	if blocked := f.blocked.Load(); blocked != nil {
		<-*blocked
	}
	f.mu.Lock()
	f.awaited[vmi.UID] = awaited
	f.mu.Unlock()
	facts := map[string]domain.InterfaceFact{}
	if f.missing.Swap(false) {
		return facts, nil
	}
	for _, i := range vmi.Spec.Domain.Devices.Interfaces {
		facts[i.Name] = domain.InterfaceFact{Tap: "tap0", MAC: cmp.Or(i.MacAddress, "02:00:00:00:00:01"), MTU: 1450}
	}
	return facts, nil
}

func (f *fakeNetworks) Advertise(_ *v1.VirtualMachineInstance, pod *corev1.Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.advertised == nil {
		f.advertised = map[types.UID]bool{}
	}
	f.advertised[pod.UID] = true
	return nil
}

func (f *fakeNetworks) Forget(pod types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.advertised, pod)
}

// advertises reports whether a Pod's gateway is advertised.
func (f *fakeNetworks) advertises(pod types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.advertised[pod]
}

// fakeFiles are the files of a Pod without devices that all support direct I/O.
type fakeFiles struct{ agent *agent }

func (fakeFiles) HasDevice(context.Context, string) (bool, error) { return false, nil }

func (fakeFiles) DirectIO(context.Context, string) (bool, error) { return true, nil }

func (fakeFiles) CPUs(context.Context) ([]uint, error) { return []uint{0, 1}, nil }

func (f fakeFiles) SetRealtime(_ context.Context, vcpus []uint) error {
	if set := f.agent.setRealtime.Load(); set != nil {
		return (*set)(vcpus)
	}
	return errors.New("no priority is expected")
}

func (fakeFiles) BlockSizes(context.Context, string) (facts.BlockSizes, error) {
	return facts.BlockSizes{Logical: 512, Physical: 4096, Discard: 4096}, nil
}

func (fakeFiles) DeviceBytes(context.Context, string) (uint64, error) { return 2 << 30, nil }

func (fakeFiles) OwnDevices(context.Context) error { return nil }

func (fakeFiles) SELinuxContext(context.Context) (string, error) {
	return "system_u:object_r:container_file_t:s0:c1,c2", nil
}

func (f fakeFiles) AttachVolume(_ context.Context, volume string, attachment types.UID, block bool) error {
	return f.agent.mounts.attach(volume, attachment, block)
}

func (f fakeFiles) AttachDevice(ctx context.Context, volume string, attachment types.UID) error {
	if err := f.agent.mounts.await(ctx, attachment); err != nil {
		return err
	}
	return f.agent.mounts.attach(volume, attachment, true)
}

func (f fakeFiles) AttachDirectory(_ context.Context, volume string, attachment types.UID) error {
	return f.agent.mounts.attachAt(volume, volume, attachment)
}

func (f fakeFiles) DetachVolume(_ context.Context, volume string, _ types.UID, block bool) error {
	return f.agent.mounts.detach(volume, block)
}

// podContent are the volumes of a Pod in podsDir.
type podContent types.UID

// Secret returns the first key that a Secret's volume has.
func (c podContent) Secret(volume string, keys ...string) ([]byte, error) {
	files, err := c.Files(media.SecretVolume, volume)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if data, found := files[key]; found {
			return data, nil
		}
	}
	return nil, fs.ErrNotExist
}

// Files returns all files of a volume.
func (c podContent) Files(kind media.VolumeKind, volume string) (map[string][]byte, error) {
	return kubelet.ReadVolume(podsDir, types.UID(c), string(kind), volume)
}
