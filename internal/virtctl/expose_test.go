// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// longName is too long for a label's value. longID replaces it, with digits of its SHA-1.
const (
	longName = "a-virtual-machine-with-a-name-that-is-longer-than-the-value-of-a-label-may-be"
	longID   = "a-virtual-machine-with-a-name-that-is-longer-than-the--e80ac2c4"
)

func exposeCluster(t *testing.T) *virtctltest.Server {
	s := virtctltest.NewServer(t)
	web := builder.MakeVMI("web").Namespace(virtctltest.Namespace).Masquerade(v1.Port{Name: "http", Port: 80},
		v1.Port{Port: 53, Protocol: "UDP"}).
		Multus("lan", "lan")
	// No Service reaches this one.
	web.Obj().Spec.Domain.Devices.Interfaces[1].Ports = []v1.Port{{Port: 80}, {Port: 81}}
	isolated := builder.MakeVMI("isolated").Namespace(virtctltest.Namespace).Multus("lan", "lan")
	isolated.Obj().Spec.Domain.Devices.Interfaces[0].Ports = []v1.Port{{Port: 80}}
	long := builder.MakeVMI(longName).Namespace(virtctltest.Namespace)
	s.Add(builder.MakeVM(longName).Namespace(virtctltest.Namespace).Template(long).Obj(), long.Obj())
	s.Add(builder.MakeVM("demo").Namespace(virtctltest.Namespace).Obj(),
		builder.MakeVM("web").Namespace(virtctltest.Namespace).Template(web).Obj(), web.Obj(), isolated.Obj())
	set := func(name string, selector *metav1.LabelSelector) *v1.VirtualMachineInstanceReplicaSet {
		return &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: virtctltest.Namespace,
			Name: name}, Spec: v1.VirtualMachineInstanceReplicaSetSpec{Selector: selector}}
	}
	s.Add(set("set", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "set"}}),
		set("odd", &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a",
			Operator: metav1.LabelSelectorOpExists}}}))
	return s
}

func TestExpose(t *testing.T) {
	tcp := func(name string, port, target int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(target)}
	}
	byID := func(name string) map[string]string { return map[string]string{v1.VirtualMachineInstanceIDLabel: name} }
	policy := corev1.IPFamilyPolicyPreferDualStack
	tests := map[string]corev1.ServiceSpec{
		"vm demo --port=22": {Type: corev1.ServiceTypeClusterIP, Selector: byID("demo"), Ports: []corev1.ServicePort{tcp("", 22, 22)}},
		"vm " + longName + " --port=22": {Type: corev1.ServiceTypeClusterIP, Selector: byID(longID),
			Ports: []corev1.ServicePort{tcp("", 22, 22)}},
		"vmi " + longName + " --port=22": {Type: corev1.ServiceTypeClusterIP, Selector: byID(longID),
			Ports: []corev1.ServicePort{tcp("", 22, 22)}},
		"VirtualMachines demo --port=5555 --target-port=22 --node-port=30001 --type=nodeport --port-name=ssh": {
			Type: corev1.ServiceTypeNodePort, Selector: byID("demo"),
			Ports: []corev1.ServicePort{{Name: "ssh", Protocol: corev1.ProtocolTCP, Port: 5555, TargetPort: intstr.FromInt32(22),
				NodePort: 30001}},
		},
		"vmi web": {Type: corev1.ServiceTypeClusterIP, Selector: byID("web"), Ports: []corev1.ServicePort{
			tcp("http", 80, 80), {Name: "port-2", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(53)},
		}},
		"vmirs set --port=80 --target-port=http --protocol=udp --ip-family=IPv4,IPv6 --ip-family-policy=PreferDualStack --external-ip=1.2.3.4": {
			Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": "set"}, ExternalIPs: []string{"1.2.3.4"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 80, TargetPort: intstr.FromString("http")}},
		},
		"vm demo --port=80 --type=LoadBalancer --load-balancer-ip=1.2.3.4 --cluster-ip=10.0.0.1": {
			Type: corev1.ServiceTypeLoadBalancer, Selector: byID("demo"), ClusterIP: "10.0.0.1", LoadBalancerIP: "1.2.3.4",
			Ports: []corev1.ServicePort{tcp("", 80, 80)},
		},
	}
	for command, want := range tests {
		t.Run(command, func(t *testing.T) {
			s := exposeCluster(t)
			words := strings.Fields(command)
			got := s.Run(virtctl.Execute, append(append([]string{"expose"}, words...), "--name=service")...)
			if want := "Service service successfully exposed for " + words[0] + " " + words[1] + "\n"; got.Code != 0 ||
				got.Out != want {
				t.Fatalf("%+v", got)
			}
			made := &corev1.Service{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
				s.Get("services", virtctltest.Namespace, "service").Object, made); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, made.Spec); diff != "" {
				t.Errorf("service (-want +got):\n%s", diff)
			}
			kind := map[string]string{"vm": "VirtualMachine", "VirtualMachines": "VirtualMachine",
				"vmi": "VirtualMachineInstance", "vmirs": "VirtualMachineInstanceReplicaSet"}[words[0]]
			owner := s.Get(strings.ToLower(kind)+"s", virtctltest.Namespace, words[1])
			wantOwner := []metav1.OwnerReference{{
				APIVersion: "kubevirt.io/v1", Kind: kind, Name: words[1], UID: owner.GetUID(), BlockOwnerDeletion: ptr.To(false),
			}}
			if diff := cmp.Diff(wantOwner, made.OwnerReferences); diff != "" {
				t.Errorf("owner (-want +got):\n%s", diff)
			}
		})
	}
}

func TestExposeRefuses(t *testing.T) {
	s := exposeCluster(t)
	for command, want := range map[string]string{
		"vm demo --port=22":                                 `required flag(s) "name" not set`,
		"vm demo --name=a":                                  "--port is needed",
		"vmi isolated --name=a":                             "--port is needed",
		"vm demo --name=a --port=1 --protocol=ICMP":         "unknown protocol: ICMP",
		"vm demo --name=a --port=1 --type=ExternalName":     "unknown service type",
		"vm demo --name=a --port=1 --ip-family=ipx":         "unknown IPFamily/s",
		"vm demo --name=a --port=1 --ip-family-policy=Some": "unknown IPFamilyPolicy/s",
		"vm absent --name=a --port=1":                       `"absent" not found`,
		"pod demo --name=a --port=1":                        `unsupported resource type "pod"`,
		"vmirs odd --name=a --port=1":                       "with match expressions",
	} {
		t.Run(command, func(t *testing.T) {
			expectFailure(t, s.Run(virtctl.Execute, append([]string{"expose"}, strings.Fields(command)...)...), want)
		})
	}
	if got := s.Run(virtctl.Execute, "expose", "vm", "demo", "--name=a", "--port=1", "--dry-run",
		"-oyaml"); got.Code != 0 || !strings.Contains(got.Out, "kind: Service") {
		t.Errorf("%+v", got)
	}
	if len(s.Writes()) > 0 {
		t.Errorf("the cluster was changed: %v", s.Writes())
	}
}

func TestInspect(t *testing.T) {
	s := virtctltest.NewServer(t)
	s.Record(http.MethodGet, vmPath+"expand-spec", http.StatusOK, `{"kind":"VirtualMachine","apiVersion":"kubevirt.io/v1"}`)
	s.Record(http.MethodPut, "/namespaces/{namespace}/expand-vm-spec", http.StatusOK, `{"kind":"VirtualMachine","spec":{}}`)
	s.Record(http.MethodGet, vmiPath+"objectgraph", http.StatusOK, `{"objectReference":{"kind":"VirtualMachineInstance"}}`)
	kubevirt := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kubevirt.Spec.Configuration.PermittedHostDevices = &v1.PermittedHostDevices{
		PciHostDevices:  []v1.PciHostDevice{{ResourceName: "example.com/nic"}},
		MediatedDevices: []v1.MediatedHostDevice{{ResourceName: "example.com/gpu"}},
	}
	s.Add(kubevirt)
	for command, want := range map[string]string{
		"expand --vm demo":              "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\n",
		"expand --file - -ojson":        "{\n  \"kind\": \"VirtualMachine\",\n  \"spec\": {}\n}\n",
		"objectgraph demo --vmi -l a=b": "{\n  \"objectReference\": {\n    \"kind\": \"VirtualMachineInstance\"\n  }\n}\n",
		"permitted-devices":             "Permitted Devices: \nHost Devices: \nexample.com/nic \nGPU Devices: \nexample.com/gpu\n",
	} {
		got := s.RunWith(t.Context(), virtctl.Execute, strings.NewReader("kind: VirtualMachine\n"),
			strings.Fields(command)...)
		if got != (virtctltest.Result{Out: want}) {
			t.Errorf("%s: %+v, want %q", command, got, want)
		}
	}
	for _, request := range s.Requests() {
		if request.Method == http.MethodPut && string(request.Body) != `{"kind":"VirtualMachine"}` {
			t.Errorf("sent %s", request.Body)
		}
	}
	expectFailure(t, s.Run(virtctl.Execute, "expand"), "VirtualMachine name or file must be provided")
}
