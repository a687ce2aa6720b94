// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/agent/brokerclient"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/hypervisor/rpc"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/network"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	podnetwork "github.com/vireo-project/vireo/internal/broker/network"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/broker"
	"github.com/vireo-project/vireo/test/libvirtd"
)

const (
	agentNode   = "node-1"
	agentPodUID = types.UID("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11")
	vmiUID      = types.UID("7d9bdd2c-9e57-4c8f-a1d5-5a07b8f0a0b1")
)

var vmiKey = types.NamespacedName{Namespace: "default", Name: "vm"}

// node is a kubelet's directory with Pods and an agent, with a real libvirtd.
type node struct {
	daemon *libvirtd.Daemon
	// pods and logs are the kubelet's directories of Pods and of their logs.
	pods, logs    string
	notifications chan types.NamespacedName
	manager       *rpc.Manager
	client        client.Client
	agent         *agentvmi.Reconciler
	// broker has the privileges on the node.
	broker *brokerclient.Client
	// exporters returns what the agent connects to exporters with, if it does.
	exporters func(string) (*tls.Config, error)
	// advertisers run until stop.
	advertisers *network.Advertisers
}

func newNode(objects ...client.Object) *node {
	GinkgoHelper()
	n := &node{
		daemon: libvirtd.Start(GinkgoT(), os.Getenv(libvirtd.RootfsEnv)), pods: GinkgoT().TempDir(),
		logs: GinkgoT().TempDir(),
	}
	n.broker = broker.Start(GinkgoT(), broker.Options{
		PodsDir: n.pods, PodLogsDir: n.logs, DevDir: "/dev", PublishedDevices: filepath.Join(n.pods, "published"),
		CheckPeer: processOf(n.daemon.PID),
	})
	scheme := runtime.NewScheme()
	Expect(corev1.AddToScheme(scheme)).To(Succeed())
	Expect(v1.AddToScheme(scheme)).To(Succeed())
	n.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1.VirtualMachineInstance{}).
		WithIndex(&corev1.Pod{}, agentvmi.PodIndex, agentvmi.IndexPod).Build()
	n.startAgent()
	return n
}

// startAgent starts an agent without state of an earlier one.
func (n *node) startAgent() {
	GinkgoHelper()
	n.notifications = make(chan types.NamespacedName, 100)
	notifications := n.notifications
	var err error
	responses := hypervisor.NewResponseBudget()
	n.manager, err = rpc.NewManager(rpc.Options{
		Responses: responses, Broker: n.broker, RelayDir: filepath.Join(GinkgoT().TempDir(), "r"),
	}, func(key types.NamespacedName) { notifications <- key })
	Expect(err).NotTo(HaveOccurred())
	n.advertisers = network.NewAdvertisers(GinkgoLogr)
	n.agent = agentvmi.New(agentvmi.Options{
		Client: n.client, APIReader: n.client, Node: agentNode, Facts: facts.Node{Arch: "amd64"},
		Connections: agent.Connections{Manager: n.manager}, Responses: responses,
		Networks: agent.Networks{Advertisers: n.advertisers, Broker: n.broker},
		Content:  func(pod types.UID) media.Content { return n.broker.Content(pod) },
		Files:    func(pod types.UID) agentvmi.Files { return n.broker.Files(pod) },
		Config: func() clusterconfig.Config {
			config := clusterconfig.Default()
			config.UseEmulation = true
			return config
		},
		Recorder:    &events.FakeRecorder{},
		ExporterTLS: n.exporters,
	})
	DeferCleanup(n.stopAgent)
}

func (n *node) stopAgent() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	Expect(n.manager.Start(ctx)).To(Succeed())
	Expect(n.advertisers.Start(ctx)).To(Succeed())
}

// processOf returns a check that accepts a Pod's PID 1 as libvirtd's process: the test's processes are in no Pod's
// cgroup.
func processOf(pid func() int) pods.CheckPeer {
	return func(*net.UnixConn, string) (*os.File, error) {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid()), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "process"), nil
	}
}

// socketDir creates the kubelet's directory of the Pod's sockets.
func (n *node) socketDir() string {
	GinkgoHelper()
	dir := filepath.Join(n.pods, string(agentPodUID), "volumes", "kubernetes.io~empty-dir", launcherpod.SocketsVolume)
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	return dir
}

// linkSocket links libvirtd's socket into the directory of the Pod's emptyDir.
func (n *node) linkSocket() {
	GinkgoHelper()
	Expect(os.Link(n.daemon.Socket(), filepath.Join(n.socketDir(), launcherpod.LibvirtSocketName))).To(Succeed())
}

// addPrimaryInterface creates the Pod's interface, as a CNI plugin does.
func (n *node) addPrimaryInterface() {
	GinkgoHelper()
	Expect(inNamespace(n.daemon.NetNS(), addEth0)).To(Succeed())
}

func addEth0() error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: launcherpod.PrimaryInterface, MTU: 1400}, PeerName: "node"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	address, err := netlink.ParseAddr("10.244.0.5/24")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, address); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

func (n *node) reconcile() (ctrl.Result, error) {
	return n.agent.Reconcile(context.Background(), ctrl.Request{NamespacedName: vmiKey})
}

// settle reconciles upon each notification until the VMI meets a condition.
func (n *node) settle(wanted func(*v1.VirtualMachineInstance) bool) *v1.VirtualMachineInstance {
	GinkgoHelper()
	deadline := time.After(time.Minute)
	for {
		_, err := n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		if vmi := n.vmi(); wanted(vmi) {
			return vmi
		}
		select {
		case <-n.notifications:
		case <-deadline:
			Fail("the VMI does not meet the condition: " + describe(n.vmi()))
		}
	}
}

func (n *node) vmi() *v1.VirtualMachineInstance {
	GinkgoHelper()
	vmi := &v1.VirtualMachineInstance{}
	Expect(n.client.Get(context.Background(), vmiKey, vmi)).To(Succeed())
	return vmi
}

func describe(vmi *v1.VirtualMachineInstance) string {
	text := string(vmi.Status.Phase)
	for _, c := range vmi.Status.Conditions {
		text += "; " + string(c.Type) + "=" + string(c.Status) + " " + c.Reason + " " + c.Message
	}
	return text
}

func launcherPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmiKey.Namespace, Name: "virt-launcher-vm-x", UID: agentPodUID,
			Labels: map[string]string{v1.AppLabel: launcherpod.AppLabelValue, v1.CreatedByLabel: string(vmiUID)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: vmiKey.Name, UID: vmiUID,
				Controller: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: agentNode},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.5"}},
			Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		},
	}
}

// assignedVMI returns a VMI that is assigned to the agent, with a containerDisk, cloud-init and a masquerade interface.
func assignedVMI() *v1.VirtualMachineInstance {
	disk := func(name string) v1.Disk {
		return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}}
	}
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: vmiKey.Namespace, Name: vmiKey.Name, UID: vmiUID},
	}
	memory := resource.MustParse("64Mi")
	vmi.Spec.Architecture = "amd64"
	vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: &memory}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{disk("root"), disk("seed"), disk("scratch")}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example/disk"}}},
		{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config\n"}}},
		{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")}}},
	}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{
		Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}}
	vmi.Spec.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
	vmi.Status.Phase, vmi.Status.NodeName = v1.Scheduled, agentNode
	return vmi
}

func isRunning(vmi *v1.VirtualMachineInstance) bool { return vmi.Status.Phase == v1.Running }

var _ = Describe("The agent", Label("libvirt"), func() {
	It("starts a guest, does not change it after a restart of the agent, and destroys it after the grace period", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()

		By("waiting for an event of the socket")
		_, err := n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		n.linkSocket()

		By("starting the guest")
		vmi := n.settle(isRunning)
		Eventually(n.daemon.Console).WithTimeout(bootTimeout).Should(ContainSubstring(bootSectorMessage))
		Expect(vmi.Status.Machine).NotTo(BeNil())
		Expect(vmi.Status.Interfaces).To(HaveLen(1))
		Expect(vmi.Status.Interfaces[0].IP).To(Equal("10.244.0.5"))
		Expect(vmi.Status.Interfaces[0].MAC).NotTo(BeEmpty())
		Expect(vmi.Status.VolumeStatus).To(HaveLen(3))
		Expect(vmi.Status.VolumeStatus[0].Target).To(Equal("vda"))
		Expect(describe(vmi)).To(ContainSubstring("Ready=True"))

		By("writing nothing in a second reconcile")
		n.dropNotifications()
		_, err = n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		Expect(n.vmi().ResourceVersion).To(Equal(vmi.ResourceVersion))

		By("writing nothing after a restart of the agent")
		n.stopAgent()
		n.startAgent()
		vmi = n.settle(func(*v1.VirtualMachineInstance) bool {
			_, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			return err == nil
		})
		_, err = n.reconcile()
		Expect(err).NotTo(HaveOccurred())
		Expect(n.vmi().ResourceVersion).To(Equal(vmi.ResourceVersion))

		By("destroying a guest that ignores its power button")
		n.deletePod()
		n.settle(func(*v1.VirtualMachineInstance) bool { return !n.guestRuns() })
		Expect(n.vmi().Status.Phase).To(Equal(v1.Running), "virt-controller writes the final phase")
	})

	It("does not block when libvirtd hangs, and reconnects to it without affecting the guest", func() {
		n := newNode(launcherPod(), assignedVMI())
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		n.settle(isRunning)
		conn, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
		Expect(err).NotTo(HaveOccurred())

		pid, _ := process(n.daemon, "libvirtd")
		Expect(unix.Kill(pid, unix.SIGSTOP)).To(Succeed())
		resume := sync.OnceFunc(func() { Expect(unix.Kill(pid, unix.SIGCONT)).To(Succeed()) })
		DeferCleanup(resume)
		limited, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = conn.Domain(limited, launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
		Expect(err).To(MatchError(hypervisor.ErrUnreachable))
		Eventually(conn.Done()).Should(BeClosed())
		Expect(n.settle(isRunning).Status.Interfaces).To(HaveLen(1))

		resume()
		n.settle(func(vmi *v1.VirtualMachineInstance) bool {
			_, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			return err == nil && isRunning(vmi)
		})
		Expect(n.guestRuns()).To(BeTrue())
	})

	It("starts a guest paused with startStrategy Paused", func() {
		vmi := assignedVMI()
		vmi.Spec.StartStrategy = ptr.To(v1.StartStrategyPaused)
		n := newNode(launcherPod(), vmi)
		n.addPrimaryInterface()
		n.writeImage()
		n.linkSocket()
		Expect(describe(n.settle(isRunning))).To(
			And(ContainSubstring("Paused=True PausedByUser"), ContainSubstring("Ready=False")))
	})
})

// writeImage writes a bootable disk to the containerDisk's image.
func (n *node) writeImage() {
	GinkgoHelper()
	path := n.daemon.Host(launcherpod.ContainerDiskDir("root") + "/disk/disk.img")
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, bootableDisk(), 0o644)).To(Succeed())
}

// dropNotifications drops the notifications so far.
func (n *node) dropNotifications() {
	for {
		select {
		case <-n.notifications:
		default:
			return
		}
	}
}

// deletePod deletes the Pod without a grace period left.
func (n *node) deletePod() {
	GinkgoHelper()
	ctx := context.Background()
	pod := &corev1.Pod{}
	Expect(n.client.Get(ctx, client.ObjectKeyFromObject(launcherPod()), pod)).To(Succeed())
	vmi := n.vmi()
	vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	Expect(n.client.Update(ctx, vmi)).To(Succeed())
	pod.Finalizers = []string{"example.com/stay"}
	Expect(n.client.Update(ctx, pod)).To(Succeed())
	Expect(n.client.Delete(ctx, pod)).To(Succeed())
	n.agent.Clock = clocktesting.NewFakePassiveClock(time.Now().Add(time.Minute))
}

func (n *node) guestRuns() bool {
	GinkgoHelper()
	conn, err := n.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
	if err != nil {
		return true
	}
	d, err := conn.Domain(context.Background(), launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name))
	Expect(err).NotTo(HaveOccurred())
	return d.Active()
}

// inNamespace runs a function in the network namespace at a path.
func inNamespace(path string, do func() error) error {
	namespace, err := podnetwork.OpenNamespaceFile(path)
	if err != nil {
		return err
	}
	defer func() { _ = namespace.Close() }()
	return namespace.Do(do)
}
