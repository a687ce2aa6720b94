// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/cmd/virt-handler/agent"
	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/observe"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/recorder"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
	"github.com/vireo-project/vireo/test/rights"
)

// clientQPS and clientBurst are virt-handler's.
const clientQPS, clientBurst = 200, 400

// agentsCommand runs the agents of some nodes in a process of their own.
func agentsCommand() *cobra.Command {
	var kubeconfig string
	cmd := &cobra.Command{
		Use: "agents NODE...", Short: "Run the agents of nodes", Hidden: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, nodes []string) error {
			ctrl.SetLogger(logr.Discard())
			config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			if err != nil {
				return err
			}
			all, ctx := errgroup.WithContext(cmd.Context())
			for _, node := range nodes {
				all.Go(func() error { return runAgent(ctx, config, node) })
			}
			return all.Wait()
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig of an administrator")
	return cmd
}

// runAgent runs the agent of a node as virt-handler does, except for what needs a node: the servers, virt-broker and
// libvirt.
func runAgent(ctx context.Context, admin *rest.Config, node string) error {
	account := rights.Handler.ImpersonateOn(admin, node)
	account.QPS, account.Burst = clientQPS, clientBurst
	// Connections of its own, as an agent on a node has them: client-go shares those of equal configurations.
	dialer := &net.Dialer{}
	account.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := v1.AddToScheme(scheme); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(account, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:      agent.CacheOptions(&agent.Options{Node: node, Namespace: rights.Namespace}),
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return err
	}
	guests, err := addReconciler(ctx, mgr, node)
	if err != nil {
		return err
	}
	for _, runnable := range []interface{ Start(context.Context) error }{
		&observe.Heartbeat{Client: mgr.GetClient(), Namespace: rights.Namespace, Node: node, OnReconnect: guests.Recheck},
		reporter(mgr, node),
		certificate.NewSource(mgr.GetConfig(), certificate.AgentServing, certificate.AgentSubject(node), ""),
		certificate.NewSource(mgr.GetConfig(), certificate.AgentMigration, certificate.AgentMigrationSubject(node), ""),
		certificate.NewSource(mgr.GetConfig(), certificate.AgentBackup, certificate.AgentBackupSubject(node), ""),
	} {
		if err := mgr.Add(runnable); err != nil {
			return err
		}
	}
	return mgr.Start(ctx)
}

func addReconciler(ctx context.Context, mgr ctrl.Manager, node string) (*agentvmi.Reconciler, error) {
	store := clusterconfig.NewStore()
	if err := store.Load(ctx, mgr.GetAPIReader(), rights.Namespace); err != nil {
		return nil, err
	}
	if err := mgr.Add(store.Follow(mgr.GetCache(), rights.Namespace)); err != nil {
		return nil, err
	}
	options := agent.IncomingOptions(node)
	options.HTTPClient, options.Scheme, options.Mapper = mgr.GetHTTPClient(), mgr.GetScheme(), mgr.GetRESTMapper()
	incoming, err := cache.New(mgr.GetConfig(), options)
	if err != nil {
		return nil, err
	}
	if err := mgr.Add(incoming); err != nil {
		return nil, err
	}
	events, err := recorder.Add(mgr, corev1.EventSource{Component: "virt-handler", Host: node})
	if err != nil {
		return nil, err
	}
	launchers, triggers := libvirt.NewNode(), agentvmi.NewTriggers()
	launchers.Notify(triggers.Enqueue)
	guests := agentvmi.New(agentvmi.Options{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Incoming: incoming, Node: node,
		Facts:       facts.Node{Arch: "amd64"},
		Connections: connections{launchers}, Responses: hypervisor.NewResponseBudget(), Networks: networks{},
		Targets: peer.NewTargets(), Enqueue: triggers.Enqueue,
		Content: func(types.UID) media.Content { return noContent{} },
		Files:   func(types.UID) agentvmi.Files { return files{} },
		Config:  store.Current, Recorder: events,
	})
	return guests, guests.SetupWithManager(mgr, triggers)
}

// reporter reports a node with as many CPU models and features as a current one has.
func reporter(mgr ctrl.Manager, node string) *observe.Reporter {
	report := agentapi.Capabilities{
		Arch: "amd64", HostModel: "model-0", Vendor: "AMD", MachineTypes: []string{"q35", "pc-q35-10.0", "pc"},
		QEMUVersion: "10.0.0", LibvirtVersion: "11.3.0",
	}
	for i := range 60 {
		report.CPUModels = append(report.CPUModels, "model-"+strconv.Itoa(i))
	}
	for i := range 150 {
		report.CPUFeatures = append(report.CPUFeatures, "feature-"+strconv.Itoa(i))
	}
	return &observe.Reporter{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Namespace: rights.Namespace, Node: node, Capabilities: report,
		Devices:         func() (usable, kvm, known bool) { return true, true, true },
		StaticCPUPolicy: func(context.Context) (bool, error) { return false, nil },
		Realtime:        func() (bool, error) { return false, nil },
	}
}

// connections opens connections to simulated launchers, each with the image of a containerDisk.
type connections struct{ node *libvirt.Node }

func (c connections) Open(pod hypervisor.PodRef) (agentvmi.Connection, error) {
	l, err := c.node.Open(pod)
	if err != nil {
		return nil, err
	}
	if l.Opens() == 1 {
		dir := launcherpod.ContainerDiskDir(rootVolume) + "/" + launcherpod.ImageDiskDir
		l.AddFile(dir, hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 1 << 30})
	}
	return connection{l}, nil
}

func (c connections) Forget(pod types.UID) { c.node.Forget(pod) }

// connection does not keep the content of files, which a real launcher has in its own memory.
type connection struct{ *libvirt.Launcher }

func (connection) Upload(context.Context, string, string, []byte) error { return nil }

// networks are Pods' networks with a tap for each interface.
type networks struct{}

func (networks) Ensure(_ context.Context, vmi *v1.VirtualMachineInstance, _ *corev1.Pod, _ bool) (
	map[string]domain.InterfaceFact, error,
) {
	taps := map[string]domain.InterfaceFact{}
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		taps[vmi.Spec.Domain.Devices.Interfaces[i].Name] = domain.InterfaceFact{Tap: fmt.Sprintf("tap%d", i),
			MAC: "02:00:00:00:00:01", MTU: 1450}
	}
	return taps, nil
}

func (networks) Forward(context.Context, *v1.VirtualMachineInstance, *corev1.Pod) error {
	return nil
}

func (networks) Advertise(*v1.VirtualMachineInstance, *corev1.Pod) error {
	return nil
}

func (networks) Forget(types.UID) {}

// files are those of a Pod with the device kvm.
type files struct{}

func (files) HasDevice(context.Context, string) (bool, error) { return true, nil }

func (files) DirectIO(context.Context, string) (bool, error) { return true, nil }

func (files) CPUs(context.Context) ([]uint, error) { return []uint{0}, nil }

func (files) BlockSizes(context.Context, string) (facts.BlockSizes, error) {
	return facts.BlockSizes{}, nil
}

func (files) DeviceBytes(context.Context, string) (uint64, error) { return 0, nil }

func (files) OwnDevices(context.Context) error { return nil }

func (files) SELinuxContext(context.Context) (string, error) {
	return "none", nil
}

func (files) SetRealtime(context.Context, []uint) error { return nil }

func (files) AttachVolume(context.Context, string, types.UID, bool) error { return nil }

func (files) AttachDevice(context.Context, string, types.UID) error { return nil }

func (files) AttachDirectory(context.Context, string, types.UID) error { return nil }

func (files) DetachVolume(context.Context, string, types.UID, bool) error { return nil }

// noContent are the volumes of a Pod without files.
type noContent struct{}

func (noContent) Secret(string, ...string) ([]byte, error) { return nil, fs.ErrNotExist }

func (noContent) Files(media.VolumeKind, string) (map[string][]byte, error) {
	return nil, errors.New("the Pod has no volumes with files")
}
