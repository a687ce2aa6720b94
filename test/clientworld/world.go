// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coder/websocket"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
	"github.com/vireo-project/vireo/internal/apiserver/server"
	"github.com/vireo-project/vireo/internal/apiserver/subresource"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/health"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	fakeagent "github.com/vireo-project/vireo/test/fakes/agent"
	"github.com/vireo-project/vireo/test/rights"
)

const (
	namespace = rights.Namespace
	service   = "virt-api"
	node      = "node1"
)

// world is a cluster with virt-api.
type world struct {
	kubeconfig string // virt-api's
	config     *rest.Config
	webhooks   envtest.WebhookInstallOptions
	client     client.Client // an administrator's
	own        client.Client // virt-api's
	discovery  *discovery.DiscoveryClient
	cleanups   []func()
}

// Helper implements fakeagent.T.
func (w *world) Helper() {}

// Cleanup implements fakeagent.T.
func (w *world) Cleanup(f func()) { w.cleanups = append(w.cleanups, f) }

// Fatalf implements fakeagent.T.
func (w *world) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "clientworld: "+format+"\n", args...)
	os.Exit(1)
}

func (w *world) cleanup() {
	for _, f := range slices.Backward(w.cleanups) {
		f()
	}
}

// start starts the agent and virt-api, and returns when virt-api is available through the API server.
func (w *world) start(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, v1.AddToScheme, v1beta1.AddToScheme, snapshotv1beta1.AddToScheme,
		backupv1alpha1.AddToScheme, clonev1beta1.AddToScheme, exportv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	var err error
	if w.client, err = client.New(w.config, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if w.discovery, err = discovery.NewDiscoveryClientForConfig(w.config); err != nil {
		return err
	}
	if _, err := rights.Ship(ctx, ".", w.client); err != nil {
		return err
	}
	if err := w.startWebhooks(ctx, scheme); err != nil {
		return err
	}
	if err := w.denyStatus(ctx); err != nil {
		return err
	}
	if w.own, err = client.New(rights.API.Impersonate(w.config, nil), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	agents, err := w.startAgent(ctx)
	if err != nil {
		return err
	}
	if err := w.serve(ctx, agents); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, readyTimeout, true,
		func(ctx context.Context) (bool, error) {
			for _, version := range subresource.Versions {
				_, err := w.discovery.RESTClient().Get().AbsPath("/apis", subresource.GroupName, version, "version").DoRaw(ctx)
				if err != nil {
					return false, nil //nolint:nilerr // not yet
				}
			}
			return true, nil
		})
}

// denyStatus installs the policy by which only the components write status, without its rules for VMs and VMIs, whose
// status the tests write in place of the components. It returns when the API server follows it.
func (w *world) denyStatus(ctx context.Context) error {
	if err := rights.CreateFile(ctx, w.client, filepath.Join("config", "admission", "status.yaml")); err != nil {
		return err
	}
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := w.client.Get(ctx, client.ObjectKey{Name: "kubevirt-status"}, policy); err != nil {
		return err
	}
	matched := policy.Spec.MatchConstraints
	matched.ResourceRules = slices.DeleteFunc(matched.ResourceRules,
		func(rule admissionregistrationv1.NamedRuleWithOperations) bool {
			return slices.Contains(rule.APIGroups, v1.GroupVersion.Group)
		})
	if err := w.client.Update(ctx, policy); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "policy"}
	vm := &v1.VirtualMachine{ObjectMeta: meta, Spec: v1.VirtualMachineSpec{
		RunStrategy: ptr.To(v1.RunStrategyHalted), Template: &v1.VirtualMachineInstanceTemplateSpec{},
	}}
	snapshot := &snapshotv1beta1.VirtualMachineSnapshot{ObjectMeta: meta, Spec: snapshotv1beta1.VirtualMachineSnapshotSpec{
		Source: corev1.TypedLocalObjectReference{APIGroup: ptr.To(v1.GroupVersion.Group), Kind: "VirtualMachine",
			Name: vm.Name},
	}}
	objects := []client.Object{vm, snapshot}
	for _, object := range objects {
		if err := w.client.Create(ctx, object); err != nil {
			return err
		}
	}
	write := func(object client.Object, status string) error {
		return w.client.Status().Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"status":`+status+`}`)))
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(context.Context) (bool, error) {
		return apierrors.IsForbidden(write(snapshot, `{"readyToUse":false}`)) && write(vm, `{"created":true}`) == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the policy for status is not effective: %w", err)
	}
	for _, object := range objects {
		if err := w.client.Delete(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts the agent of a node and creates its Pod, by which virt-api finds it.
func (w *world) startAgent(ctx context.Context) (*agentclient.Client, error) {
	a := fakeagent.Start(w, node)
	a.Stream(agentapi.Console, console)
	a.SetResponse(agentapi.GuestOSInfo, v1.VirtualMachineInstanceGuestAgentInfo{Hostname: "guest", GAVersion: "10.0"})
	a.SetResponse(agentapi.UserList,
		v1.VirtualMachineInstanceGuestOSUserList{Items: []v1.VirtualMachineInstanceGuestOSUser{{UserName: "root"}}})
	a.SetResponse(agentapi.FilesystemList,
		v1.VirtualMachineInstanceFileSystemList{Items: []v1.VirtualMachineInstanceFileSystem{{DiskName: "vda1"}}})
	a.SetResponse(agentapi.Screenshot, []byte("\x89PNG\r\n\x1a\nand so on"))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "virt-handler",
			Labels: map[string]string{"kubevirt.io": "virt-handler"}},
		Spec: corev1.PodSpec{NodeName: node,
			Containers: []corev1.Container{{Name: "virt-handler", Image: "virt-handler"}}},
	}
	if err := w.client.Create(ctx, pod); err != nil {
		return nil, err
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}
	if err := w.client.Status().Update(ctx, pod); err != nil {
		return nil, err
	}
	return agentclient.New(
		agentclient.Options{Pods: w.own, Namespace: namespace, Port: a.Port, TLS: a.Authority.Client(w)}), nil
}

// console echoes. The message "take over" simulates another client that takes over the console.
func console(ctx context.Context, conn *websocket.Conn) {
	for {
		kind, message, err := conn.Read(ctx)
		if err != nil || conn.Write(ctx, kind, message) != nil {
			return
		}
		if string(message) == "take over\n" {
			_ = conn.Close(agentapi.CloseTakenOver, "another client took over the console")
			return
		}
	}
}

// settings are the configuration of the cluster.
func settings() clusterconfig.Config {
	config := clusterconfig.Default()
	config.FeatureGates, config.HotplugVolumes = clusterconfig.NewFeatureGates(
		[]string{"ObjectGraph", clusterconfig.GateIncrementalBackup}, nil), true
	return config
}

// serve runs virt-api and registers it with the aggregation layer.
func (w *world) serve(ctx context.Context, agents *agentclient.Client) error {
	certificate, key, err := certutil.GenerateSelfSignedCertKey(service+"."+namespace+".svc", nil, nil)
	if err != nil {
		return err
	}
	own, err := dynamiccertificates.NewStaticCertKeyContent("serving", certificate, key)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := settings()
	api := &subresource.API{
		Client: w.own, Agents: agents, Config: func() clusterconfig.Config { return config },
		Health:       &health.Check{APIServer: w.discovery, ConfigVersion: func() string { return "" }},
		GuestfsImage: "registry.example/vireo/libguestfs-tools:v1",
	}
	s, err := server.New(server.Options{
		Listener: listener, Address: "127.0.0.1", Certificate: own, Kubeconfig: w.kubeconfig,
	}, api.Verbs)
	if err != nil {
		return err
	}
	go func() {
		if err := s.Run(ctx); err != nil {
			w.Fatalf("virt-api: %v", err)
		}
	}()
	return w.register(ctx, listener.Addr().(*net.TCPAddr).Port, certificate)
}

// register creates the APIServices. Their Service is of type ExternalName, because the API server rejects endpoints
// with loopback addresses.
func (w *world) register(ctx context.Context, port int, certificate []byte) error {
	err := w.client.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: []corev1.ServicePort{{Port: int32(port)}},
		},
	})
	if err != nil {
		return err
	}
	for i, version := range subresource.Versions {
		registration := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
			"metadata": map[string]any{"name": version + "." + subresource.GroupName},
			"spec": map[string]any{
				"group": subresource.GroupName, "version": version,
				"groupPriorityMinimum": int64(1000), "versionPriority": int64(15 - i),
				"service":  map[string]any{"namespace": namespace, "name": service, "port": int64(port)},
				"caBundle": base64.StdEncoding.EncodeToString(certificate),
			},
		}}
		if err := w.client.Create(ctx, registration); err != nil {
			return err
		}
	}
	return nil
}
