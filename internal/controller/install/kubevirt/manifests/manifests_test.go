// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func settings(change func(*Settings)) Settings {
	s := Settings{Namespace: "kubevirt", Config: clusterconfig.Default()}
	s.Config.Images = clusterconfig.Images{Launcher: "l:1", Handler: "h:1", Broker: "b:1", API: "a:1"}
	s.Bundles = map[string][]byte{"virt-api-serving": []byte("serving"), "virt-api-client": []byte("client")}
	if change != nil {
		change(&s)
	}
	return s
}

func render(t *testing.T, s Settings) []*unstructured.Unstructured {
	t.Helper()
	objects, err := Render(s)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Users of virt-exportproxy read its authority from the key that KubeVirt has.
func TestPublicBundle(t *testing.T) {
	data := func(s Settings) map[string]string {
		for _, o := range render(t, s) {
			if o.GetKind() == "ConfigMap" && o.GetName() == certificate.BundleName {
				found := &corev1.ConfigMap{}
				convert(t, o, found)
				return found.Data
			}
		}
		t.Fatal("no ConfigMap with the CA certificates was rendered")
		return nil
	}
	if _, found := data(settings(nil))[certificate.PublicBundle]; found {
		t.Error("there is a bundle without an authority")
	}
	published := data(settings(func(s *Settings) { s.Bundles[certificate.ExportProxyServing.Name] = []byte("proxy") }))
	if got := published[certificate.PublicBundle]; got != "proxy" {
		t.Errorf("got %q, want the authority of virt-exportproxy", got)
	}
}

func handlerOf(t *testing.T, s Settings) *appsv1.DaemonSet {
	t.Helper()
	return daemonsOf(t, s, HandlerName)
}

func daemonsOf(t *testing.T, s Settings, name string) *appsv1.DaemonSet {
	t.Helper()
	for _, o := range render(t, s) {
		if o.GetKind() == "DaemonSet" && o.GetName() == name {
			ds := &appsv1.DaemonSet{}
			convert(t, o, ds)
			return ds
		}
	}
	t.Fatalf("no DaemonSet %s was rendered", name)
	return nil
}

func convert(t *testing.T, from *unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, into); err != nil {
		t.Fatal(err)
	}
}

func TestRenderedObjectsAreMarked(t *testing.T) {
	for _, o := range render(t, settings(nil)) {
		namespace := "kubevirt"
		if o.GetKind() == "APIService" {
			namespace = ""
		}
		if o.GetNamespace() != namespace || o.GetLabels()[ManagedByLabel] != ManagedBy ||
			o.GetAnnotations()[HashAnnotation] == "" {
			t.Errorf("%s %s: namespace %q, labels %v, annotations %v", o.GetKind(), o.GetName(), o.GetNamespace(), o.GetLabels(),
				o.GetAnnotations())
		}
		if _, ok := o.Object["status"]; ok {
			t.Errorf("%s %s has a status", o.GetKind(), o.GetName())
		}
	}
}

func TestDeploymentIDFollowsSettings(t *testing.T) {
	id := func(change func(*Settings)) string {
		t.Helper()
		id, err := DeploymentID(settings(change))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range render(t, settings(change)) {
			if got := o.GetAnnotations()[IdentifierAnnotation]; got != id {
				t.Errorf("%s %s has the identifier %q, want %q", o.GetKind(), o.GetName(), got, id)
			}
		}
		return id
	}
	if first, second := id(nil), id(nil); first != second || first == "" {
		t.Error("two renderings of the same settings differ")
	}
	changes := map[string]func(*Settings){
		"image":       func(s *Settings) { s.Config.Images.Handler = "h:2" },
		"broker":      func(s *Settings) { s.Config.Images.Broker = "b:2" },
		"pull policy": func(s *Settings) { s.Config.ImagePullPolicy = corev1.PullNever },
		"virt-api":    func(s *Settings) { s.Config.Images.API = "a:2" },
		"replicas":    func(s *Settings) { s.Replicas = ptr.To[uint8](3) },
		"devices":     func(s *Settings) { s.Config.VirtualMachineInstancesPerNode = 5 },
		"labels":      func(s *Settings) { s.Labels = map[string]string{v1.AppVersionLabel: "1"} },
		"flags of virt-controller": func(s *Settings) {
			s.Customize.Flags = &v1.Flags{Controller: map[string]string{"v": "4"}}
		},
	}
	for name, change := range changes {
		if id(change) == id(nil) {
			t.Errorf("%s does not change the deployment's identity", name)
		}
	}
	if id(func(s *Settings) { s.Config.Verbosity.Handler = 9 }) != id(nil) {
		t.Error("the log verbosity restarts every agent")
	}
	if id(func(s *Settings) { s.Config.UseEmulation = true }) != id(nil) {
		t.Error("useEmulation restarts every agent")
	}
	for name, change := range map[string]func(*Settings){
		"nodes":        func(s *Settings) { s.Nodes = 200 },
		"one node":     func(s *Settings) { s.Nodes = 1 },
		"controllers":  func(s *Settings) { s.ControllerReplicas = 2 },
		"certificates": func(s *Settings) { s.Bundles = map[string][]byte{"virt-api-serving": []byte("other")} },
	} {
		if id(change) != id(nil) {
			t.Errorf("%s: the deployment's identity changes without an update", name)
		}
	}
	if id(func(s *Settings) { s.Bundles["virt-api-serving"] = []byte("rotated") }) != id(nil) {
		t.Error("a new authority is another installation")
	}
}

func TestAgentIsNotPrivileged(t *testing.T) {
	for _, emulation := range []bool{true, false} {
		pod := handlerOf(t, settings(func(s *Settings) { s.Config.UseEmulation = emulation })).Spec.Template.Spec
		agent := pod.Containers[0].SecurityContext
		if *agent.Privileged || *agent.AllowPrivilegeEscalation ||
			!slices.Equal(agent.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			len(agent.Capabilities.Add) > 0 || *agent.RunAsUser == 0 || !*agent.RunAsNonRoot {
			t.Errorf("emulation %t: the agent's security context is %+v", emulation, agent)
		}
		if pod.HostPID || pod.HostNetwork || pod.HostIPC {
			t.Errorf("emulation %t: the agent shares a namespace of the node", emulation)
		}
	}
}

// The probe runs like a launcher, also on nodes without KVM. It keeps running, because a kubelet that restarts keeps
// the devices of containers that run.
func TestProbeOfANode(t *testing.T) {
	for _, emulation := range []bool{true, false} {
		pod := handlerOf(t, settings(func(s *Settings) { s.Config.UseEmulation = emulation })).Spec.Template.Spec
		probe := pod.InitContainers[0]
		if probe.SecurityContext.Privileged != nil || *probe.SecurityContext.AllowPrivilegeEscalation ||
			*probe.SecurityContext.RunAsUser != 107 || !*probe.SecurityContext.RunAsNonRoot ||
			!slices.Equal(probe.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("emulation %t: the probe's security context is %+v", emulation, probe.SecurityContext)
		}
		if len(probe.Resources.Limits) != 1 || probe.Resources.Limits.Name("devices.kubevirt.io/kvm-probe", "").Value() != 1 {
			t.Errorf("emulation %t: the probe's limits are %v", emulation, probe.Resources.Limits)
		}
		if ptr.Deref(probe.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways || probe.StartupProbe == nil ||
			!slices.Contains(probe.Args, "--stay") {
			t.Errorf("emulation %t: the probe does not keep running: %+v", emulation, probe)
		}
	}
}

// The agent's container gets nothing of the node but the directory of the broker's socket.
func TestAgentMountsOnlyTheBrokersSocket(t *testing.T) {
	pod := handlerOf(t, settings(nil)).Spec.Template.Spec
	hostPaths := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			hostPaths[v.Name] = v.HostPath.Path
		}
	}
	var mounted []string
	for _, m := range pod.Containers[0].VolumeMounts {
		if dir, found := hostPaths[m.Name]; found {
			mounted = append(mounted, dir)
			if !m.ReadOnly {
				t.Errorf("the agent may write to %s of the node", dir)
			}
		}
	}
	if want := []string{"/var/lib/kubelet/plugins/kubevirt.io.broker"}; !slices.Equal(mounted, want) {
		t.Errorf("the agent mounts %q of the node, want %q", mounted, want)
	}
}

// The broker has the agent's former privileges, and neither a token nor the node's network.
func TestBroker(t *testing.T) {
	ds := daemonsOf(t, settings(nil), BrokerName)
	pod := ds.Spec.Template.Spec
	if len(pod.Containers) != len(brokerapi.Programs) || pod.Containers[0].Name != BrokerName {
		t.Fatalf("there are %d containers, the first is %s", len(pod.Containers), pod.Containers[0].Name)
	}
	for i := range pod.Containers {
		expectPrivileges(t, &pod.Containers[i], brokerapi.Programs[i])
	}
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		t.Error("the broker gets a token")
	}
	if !pod.HostPID || pod.HostNetwork || pod.HostIPC {
		t.Errorf("the broker has hostPID %t, hostNetwork %t, hostIPC %t", pod.HostPID, pod.HostNetwork, pod.HostIPC)
	}
	if _, scraped := ds.Spec.Template.Labels[ScrapeLabel]; scraped {
		t.Error("Prometheus scrapes the broker, which serves no metrics")
	}
}

// expectPrivileges checks the container of a program of virt-broker's Pod.
func expectPrivileges(t *testing.T, container *corev1.Container, program brokerapi.Program) {
	t.Helper()
	security := container.SecurityContext
	if *security.Privileged || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the security context of %s is %+v", container.Name, security)
	}
	if container.Name != string(program) || container.Command[0] != "/usr/bin/"+container.Name ||
		len(container.Ports) > 0 {
		t.Errorf("%s runs %s and has the ports %v", container.Name, container.Command, container.Ports)
	}
	// The socket is given to virt-handler's group, for which a program of that group needs no capability.
	if owns := slices.Contains(security.Capabilities.Add, "CHOWN"); !owns && *security.RunAsGroup != brokerapi.ClientUID {
		t.Errorf("%s runs as group %d and cannot give its socket to virt-handler", container.Name, *security.RunAsGroup)
	}
	network := slices.Contains(security.Capabilities.Add, "NET_ADMIN") ||
		slices.Contains(security.Capabilities.Add, "NET_RAW")
	if network != (container.Name == string(brokerapi.NetworkBroker)) {
		t.Errorf("%s has privileges for networks: %t", container.Name, network)
	}
	if container.Name == string(brokerapi.DevicePlugin) &&
		(len(security.Capabilities.Add) > 0 || security.AppArmorProfile != nil) {
		t.Errorf("%s has privileges: %+v", container.Name, security)
	}
}

// placement is what the two halves of an agent have in common.
type placement struct {
	Selector    map[string]string
	Tolerations []corev1.Toleration
	Affinity    *corev1.Affinity
	Priority    string
	Secrets     []corev1.LocalObjectReference
	Pull        corev1.PullPolicy
}

func placementOf(pod *corev1.PodSpec) placement {
	return placement{
		Selector: pod.NodeSelector, Tolerations: pod.Tolerations, Affinity: pod.Affinity, Priority: pod.PriorityClassName,
		Secrets: pod.ImagePullSecrets, Pull: pod.Containers[0].ImagePullPolicy,
	}
}

// mountsOf returns how a container mounts directories of the node at or below one, each at the node's path.
func mountsOf(pod *corev1.PodSpec, container *corev1.Container, below string) map[string]string {
	paths, mounts := map[string]string{}, map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	for _, m := range container.VolumeMounts {
		switch {
		case paths[m.Name] != below && !strings.HasPrefix(paths[m.Name], below+"/"):
		case paths[m.Name] != m.MountPath:
			mounts[paths[m.Name]] = "at " + m.MountPath
		case m.ReadOnly:
			mounts[m.MountPath] = "read-only"
		default:
			mounts[m.MountPath] = "writable"
		}
	}
	return mounts
}

// expectSockets checks that a program of virt-broker's Pod may write only to the directory of its own socket, and that
// virt-broker connects to virt-device-plugin's.
func expectSockets(t *testing.T, pod *corev1.PodSpec, container *corev1.Container, sockets string) {
	t.Helper()
	want := map[string]string{filepath.Dir(brokerapi.Program(container.Name).Socket(sockets)): "writable"}
	if container.Name == string(brokerapi.Broker) {
		want[filepath.Dir(brokerapi.DevicePlugin.Socket(sockets))] = "read-only"
	}
	if got := mountsOf(pod, container, sockets); !maps.Equal(got, want) {
		t.Errorf("%s mounts %v, want %v", container.Name, got, want)
	}
}

// What places or configures the agents applies to their brokers: an agent is useless without one.
func TestBrokerFollowsTheAgent(t *testing.T) {
	for _, root := range []string{"", "/data/kubelet/"} {
		s := settings(func(s *Settings) {
			s.KubeletRoot = root
			s.Workloads = &v1.NodePlacement{
				NodeSelector: map[string]string{"guests": "yes"},
				Tolerations:  []corev1.Toleration{{Key: "guests", Operator: corev1.TolerationOpExists}},
				Affinity: &corev1.Affinity{
					NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
						NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "guests",
							Operator: corev1.NodeSelectorOpExists}}}},
					}}},
			}
			s.Config.ImagePullPolicy = corev1.PullNever
			s.Config.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		})
		agent, broker := handlerOf(t, s).Spec.Template.Spec, daemonsOf(t, s, BrokerName).Spec.Template.Spec
		want, got := placementOf(&agent), placementOf(&broker)
		sockets := brokerapi.SocketDir(s.kubeletRoot())
		if !equality.Semantic.DeepEqual(want, got) || got.Selector["guests"] != "yes" || got.Affinity == nil {
			t.Errorf("the agent has %+v, and its broker %+v", want, got)
		}
		if got := mountsOf(&agent, &agent.Containers[0], sockets); len(got) != 1 || got[sockets] != "read-only" {
			t.Errorf("the agent mounts %v, want %s", got, sockets)
		}
		for i, container := range broker.Containers {
			expectSockets(t, &broker, &broker.Containers[i], sockets)
			wantArgs := "--kubelet-root " + s.kubeletRoot()
			if container.Name == string(brokerapi.DevicePlugin) {
				wantArgs += " --max-devices 1000"
			}
			if args := strings.Join(container.Args, " "); container.Image != "b:1" || args != wantArgs ||
				container.ImagePullPolicy != corev1.PullNever {
				t.Errorf("%s has the image %s and the arguments %s", container.Name, container.Image, args)
			}
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
				want := []string{"/usr/bin/" + container.Name, "check", "--kubelet-root", s.kubeletRoot()}
				if !slices.Equal(probe.Exec.Command, want) {
					t.Errorf("%s is checked by %q", container.Name, probe.Exec.Command)
				}
			}
			for _, m := range container.VolumeMounts {
				want := map[string]string{
					"kubelet-pods": "/pods", "pod-resources": "/pod-resources",
					"published-devices": "/plugins/kubernetes.io/csi/volumeDevices",
				}[m.Name]
				if want != "" && m.MountPath != s.kubeletRoot()+want {
					t.Errorf("%s of %s is mounted at %s, want %s", m.Name, container.Name, m.MountPath, s.kubeletRoot()+want)
				}
			}
		}
	}
}

// The number of VMIs on a node is a flag of KubeVirt's virt-handler, and virt-device-plugin advertises the devices.
func TestMaxDevicesOfTheHandlerAreTheDevicePlugins(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"7": func(s *Settings) { s.Config.VirtualMachineInstancesPerNode = 7 },
		"8": func(s *Settings) {
			s.Config.VirtualMachineInstancesPerNode = 7
			s.Customize.Flags = &v1.Flags{Handler: map[string]string{"--Max-Devices": "8", "v": "4"}}
		},
	} {
		if args := strings.Join(handlerOf(t, settings(change)).Spec.Template.Spec.Containers[0].Args,
			" "); strings.Contains(strings.ToLower(args), "devices") {
			t.Errorf("virt-handler has the arguments %s, and does not know that flag", args)
		}
		containers := daemonsOf(t, settings(change), BrokerName).Spec.Template.Spec.Containers
		at := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == string(brokerapi.DevicePlugin) })
		args := containers[at].Args
		if got := args[len(args)-2:]; !slices.Equal(got, []string{"--max-devices", name}) {
			t.Errorf("virt-device-plugin has the arguments %q, want %s devices", args, name)
		}
	}
}

func TestPlacementPullPolicyAndFlags(t *testing.T) {
	pod := handlerOf(t, settings(func(s *Settings) {
		s.KubeletRoot = "/data/kubelet/"
		s.Workloads = &v1.NodePlacement{
			NodeSelector: map[string]string{"guests": "yes"},
			Tolerations:  []corev1.Toleration{{Key: "guests", Operator: corev1.TolerationOpExists}},
		}
		s.Customize.Flags = &v1.Flags{Handler: map[string]string{"v": "7"}}
		s.Config.ImagePullPolicy = corev1.PullNever
		s.Config.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	})).Spec.Template.Spec
	if pod.NodeSelector["guests"] != "yes" || pod.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("node selector %v", pod.NodeSelector)
	}
	if len(pod.Tolerations) != 4 || pod.ImagePullSecrets[0].Name != "pull" {
		t.Errorf("tolerations %v, pull secrets %v", pod.Tolerations, pod.ImagePullSecrets)
	}
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		if c.ImagePullPolicy != corev1.PullNever {
			t.Errorf("container %s has pull policy %s", c.Name, c.ImagePullPolicy)
		}
	}
	args := strings.Join(pod.Containers[0].Args, " ")
	if !strings.Contains(args, "--kubelet-root /data/kubelet ") || !strings.HasSuffix(args, "--v=7") {
		t.Errorf("arguments %s", args)
	}
}

func TestUnknownImagesAreAnError(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"--handler-image": func(s *Settings) { s.Config.Images.Handler = "" },
		"--broker-image":  func(s *Settings) { s.Config.Images.Broker = "" },
	} {
		if _, err := Render(settings(change)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error is %v, which does not name %s", err, name)
		}
	}
}

func TestContains(t *testing.T) {
	type m = map[string]any
	cases := []struct {
		name       string
		live, want any
		ok         bool
	}{
		{"defaults of the server", m{"a": int64(1), "b": "x"}, m{"a": int64(1)}, true},
		{"drifted value", m{"a": int64(2)}, m{"a": int64(1)}, false},
		{"missing value", m{}, m{"a": int64(1)}, false},
		{"missing zero value", m{}, m{"a": false, "b": m{}, "c": []any{}, "d": nil}, true},
		{"list in order", []any{m{"n": "a", "x": "y"}, m{"n": "b"}}, []any{m{"n": "a"}, m{"n": "b"}}, true},
		{"longer list", []any{m{"n": "a"}, m{"n": "b"}}, []any{m{"n": "a"}}, false},
		{"nested drift", m{"a": m{"b": []any{"c"}}}, m{"a": m{"b": []any{"d"}}}, false},
		{"other type", "a", m{"a": "b"}, false},
	}
	for _, c := range cases {
		if got := contains(c.live, c.want); got != c.ok {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestRollout(t *testing.T) {
	status := func(desired, updated, ready int32) appsv1.DaemonSetStatus {
		return appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated,
			NumberReady: ready}
	}
	cases := []struct {
		name    string
		status  appsv1.DaemonSetStatus
		done    bool
		message string
	}{
		{"not observed", appsv1.DaemonSetStatus{ObservedGeneration: 1}, false, "not yet observed"},
		{"not updated", status(3, 1, 3), false, "updated on 1 of 3"},
		{"not ready", status(3, 3, 2), false, "ready on 2 of 3"},
		{"done", status(3, 3, 3), true, "all 3"},
		{"no nodes", status(0, 0, 0), true, "all 0"},
	}
	for _, c := range cases {
		got := RolloutOf(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: HandlerName, Generation: 2}, Status: c.status},
			0, 0)
		if got.Done != c.done || !strings.Contains(got.Message, c.message) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

func TestRolloutDoesNotWaitForLostNodes(t *testing.T) {
	ds := &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 3, UpdatedNumberScheduled: 2,
		NumberReady: 2}}
	if got := RolloutOf(ds, 1, 0); !got.Done || !strings.Contains(got.Message, "2 of 3 nodes, and 1 are lost") {
		t.Errorf("%+v", got)
	}
	if got := RolloutOf(ds, 1, 1); got.Done {
		t.Errorf("one of two agents that can be updated is not: %+v", got)
	}
	if got := RolloutOf(ds, 0, 0); got.Done {
		t.Errorf("%+v", got)
	}
}

func TestAgentWritesNoSecretToDisk(t *testing.T) {
	for _, volume := range handlerOf(t, settings(nil)).Spec.Template.Spec.Volumes {
		// The agent writes media with guests' Secrets there.
		if volume.Name == "tmp" &&
			(volume.EmptyDir == nil || volume.EmptyDir.Medium != corev1.StorageMediumMemory ||
				volume.EmptyDir.SizeLimit == nil) {
			t.Errorf("the agent's temporary directory is not a bounded emptyDir in memory: %+v", volume.VolumeSource)
		}
	}
}
