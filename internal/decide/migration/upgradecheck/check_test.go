// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package upgradecheck

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// scene is a guest on node-1 that can migrate to node-2.
type scene struct {
	w Observed
	g Guest
}

func makeScene() *scene {
	vmi := builder.MakeVMI("vm").Namespace("ns").UID("uid").With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.CPU = &v1.CPU{Model: v1.CPUModeHostModel}
		vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
		vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.LauncherContainerImageVersion = v1.Running, "node-1", "launcher:v1"
	}).Condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "").Obj()
	return &scene{
		w: Observed{
			Pods: podspec.Config{DefaultArchitecture: "amd64"}, Eviction: v1.EvictionStrategyLiveMigrate,
			Methods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodLiveMigrate, v1.WorkloadUpdateMethodEvict},
			Nodes:   []corev1.Node{node("node-1"), node("node-2")},
		},
		g: Guest{VMI: vmi, Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "virt-launcher-vm", Labels: map[string]string{"app": "db"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		}, Spec: corev1.PodSpec{NodeName: "node-1"}}},
	}
}

func node(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64", corev1.LabelHostname: name,
		v1.SupportedMachineTypeLabel + "q35": "true",
		v1.HostModelCPULabel + "Skylake":     "true", v1.SupportedHostModelMigrationCPU + "Skylake": "true",
	}}}
}

func (s *scene) cannot(reason, message string) {
	c := &s.g.VMI.Status.Conditions[0]
	c.Status, c.Reason, c.Message = corev1.ConditionFalse, reason, message
}

func (s *scene) quota(hard, used corev1.ResourceList) *corev1.ResourceQuota {
	s.w.Quotas = []corev1.ResourceQuota{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "small"},
		Status:     corev1.ResourceQuotaStatus{Hard: hard, Used: used},
	}}
	return &s.w.Quotas[0]
}

func memory(name corev1.ResourceName, size string) corev1.ResourceList {
	return corev1.ResourceList{name: resource.MustParse(size)}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*scene)
		// want are the problems, each as reason and a part of the message.
		want [][2]string
		fate Fate
		note string
	}{
		{"fine", func(*scene) {}, nil, Migrates, ""},
		{"its agent reports an obstacle", func(s *scene) { s.cannot("DisksNotLiveMigratable", "claim data is not shared") },
			[][2]string{{"DisksNotLiveMigratable", "claim data is not shared"}}, Stays, "waits until it is stopped"},
		{"its agent reports nothing", func(s *scene) { s.g.VMI.Status.Conditions = nil }, [][2]string{{ReasonUnknown, "node-1 has not reported yet"}}, Stays, "waits"},

		{"one node", func(s *scene) { s.w.Nodes = s.w.Nodes[:1] }, [][2]string{{ReasonNoOtherNode, "there is no other node"}}, Stays, "waits"},
		{"the other is cordoned", func(s *scene) { s.w.Nodes[1].Spec.Unschedulable = true }, [][2]string{{ReasonNoOtherNode, "node-2"}}, Stays, "waits"},
		{"the other has no agent", func(s *scene) { delete(s.w.Nodes[1].Labels, v1.NodeSchedulable) }, [][2]string{{ReasonNoOtherNode, "node-2"}}, Stays, "waits"},
		{"nothing known about nodes", func(s *scene) { s.w.Nodes = nil }, nil, Migrates, ""},
		{"pinned", func(s *scene) {
			s.g.VMI.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
			s.w.Nodes = append(s.w.Nodes, node("node-3"))
			s.w.Nodes[2].Spec.Unschedulable = true
		}, [][2]string{{ReasonNodeSelector,
			"(kubernetes.io/arch=amd64,kubernetes.io/hostname=node-1,machine-type.node.kubevirt.io/q35=true): node node-2"}},
			Stays, "waits"},
		{"pinned by affinity", func(s *scene) {
			s.g.VMI.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{"node-1"}}},
				}}},
			}}
		}, [][2]string{{ReasonNodeSelector, "and its node affinity"}}, Stays, "waits"},
		{"pinned by the cluster", func(s *scene) { s.w.Pods.NodeSelectors = map[string]string{"vms": "yes"} }, [][2]string{{ReasonNodeSelector, "vms=yes"}}, Stays, "waits"},
		{"where a migration went once does not pin it", func(s *scene) {
			s.g.Pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
		}, nil, Migrates, ""},
		{"tainted", func(s *scene) {
			s.w.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
		}, [][2]string{{ReasonTaints, "node-2"}}, Stays, "waits"},
		{"tainted and tolerated", func(s *scene) {
			s.w.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule},
				{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}}
			s.g.VMI.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		}, nil, Migrates, ""},
		{"another CPU", func(s *scene) { delete(s.w.Nodes[1].Labels, v1.SupportedHostModelMigrationCPU+"Skylake") },
			[][2]string{{ReasonCPU, "Skylake=true): node node-2"}}, Stays, "waits"},
		{"another CPU, emulated", func(s *scene) {
			delete(s.w.Nodes[1].Labels, v1.SupportedHostModelMigrationCPU+"Skylake")
			s.w.Pods.UseEmulation = true
		}, nil, Migrates, ""},
		{"the CPU of a node of the past", func(s *scene) {
			s.g.Pod.Spec.NodeSelector = map[string]string{v1.SupportedHostModelMigrationCPU + "Icelake": "true"}
		}, [][2]string{{ReasonCPU, "Icelake=true"}}, Stays, "waits"},
		{"a named CPU", func(s *scene) { s.g.VMI.Spec.Domain.CPU.Model = "EPYC" }, [][2]string{{ReasonCPU, "EPYC=true"}}, Stays, "waits"},
		{"its node does not say which CPU it has", func(s *scene) { delete(s.w.Nodes[0].Labels, v1.HostModelCPULabel+"Skylake") },
			[][2]string{{ReasonCPU, "node-1"}}, Stays, "waits"},

		{"a node without vhost-net", func(s *scene) {
			s.g.VMI.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default",
				InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}}
			s.g.VMI.Spec.Networks = []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
			s.w.Nodes[1].Status.Allocatable = corev1.ResourceList{"devices.kubevirt.io/kvm": resource.MustParse("1k"),
				"devices.kubevirt.io/tun": resource.MustParse("1k")}
		}, [][2]string{{ReasonDevices, "for vhost-net, load the kernel module vhost_net on the node): node node-2"}}, Stays,
			"waits"},

		{"quota", func(s *scene) { s.quota(memory("requests.memory", "2Gi"), memory("requests.memory", "1100Mi")) },
			[][2]string{{ReasonQuota, "ResourceQuota small leaves 948Mi of requests.memory"}}, Stays, "waits"},
		{"quota by the old name", func(s *scene) { s.quota(memory("memory", "2Gi"), memory("memory", "1100Mi")) }, [][2]string{{ReasonQuota, "of memory"}}, Stays, "waits"},
		{"quota of Pods", func(s *scene) { s.quota(memory("pods", "1"), memory("pods", "1")) }, [][2]string{{ReasonQuota, "leaves 0 of pods"}}, Stays, "waits"},
		{"quota with room", func(s *scene) { s.quota(memory("requests.memory", "4Gi"), memory("requests.memory", "1100Mi")) }, nil, Migrates, ""},
		{"quota of what it does not use", func(s *scene) { s.quota(memory("services", "0"), nil) }, nil, Migrates, ""},
		{"quota of some Pods", func(s *scene) {
			s.quota(memory("pods", "0"), nil).Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
		}, nil, Migrates, ""},
		{"quota elsewhere", func(s *scene) { s.quota(memory("pods", "0"), nil).Namespace = "other" }, nil, Migrates, ""},
		{"several", func(s *scene) {
			s.cannot("HostDeviceNotLiveMigratable", "has a GPU")
			s.w.Nodes = s.w.Nodes[:1]
			s.quota(memory("pods", "0"), nil)
		}, [][2]string{{"HostDeviceNotLiveMigratable", "GPU"}, {ReasonNoOtherNode, "no other"}, {ReasonQuota, "pods"}}, Stays,
			"waits"},

		{"no methods", func(s *scene) { s.w.Methods = nil }, nil, Stays, ""},
		{"only evictions, which move it", func(s *scene) { s.w.Methods = s.w.Methods[1:] }, nil, Migrates, ""},
		{"only evictions, which shut it down", func(s *scene) {
			s.w.Methods, s.w.Eviction = s.w.Methods[1:], v1.EvictionStrategyNone
		}, nil, ShutsDown, "a drain of its node shuts it down"},
		{"stuck, and evictions shut it down", func(s *scene) {
			s.cannot("X", "y")
			s.g.VMI.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrateIfPossible)
		}, [][2]string{{"X", "y"}}, ShutsDown, ""},
		{"stuck, and a budget blocks it", func(s *scene) {
			s.cannot("X", "y")
			s.w.Eviction = v1.EvictionStrategyNone
			s.w.Budgets = []policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keep"},
				Spec: policyv1.PodDisruptionBudgetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				}}}
		}, [][2]string{{"X", "y"}}, Stays, "PodDisruptionBudget keep allows no eviction now"},
		{"a budget that is no obstacle to a migration", func(s *scene) {
			s.w.Budgets = []policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keep"},
				Spec: policyv1.PodDisruptionBudgetSpec{
					Selector: &metav1.LabelSelector{},
				}}}
		}, nil, Migrates, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := makeScene()
			c.change(s)
			found := Check(s.w, []Guest{s.g})
			if len(found) != 1 {
				t.Fatalf("found %+v", found)
			}
			f := found[0]
			if len(f.Problems) != len(c.want) || f.Migratable != (len(c.want) == 0) {
				t.Fatalf("problems %+v, want %v", f.Problems, c.want)
			}
			for i, want := range c.want {
				if f.Problems[i].Reason != want[0] || !strings.Contains(f.Problems[i].Message, want[1]) {
					t.Errorf("problem %+v, want %v", f.Problems[i], want)
				}
			}
			if f.OnUpgrade != c.fate || !strings.Contains(f.Note, c.note) || (c.note == "") != (f.Note == "") {
				t.Errorf("%s (%s), want %s (%s)", f.OnUpgrade, f.Note, c.fate, c.note)
			}
		})
	}
}

func TestCheckReportsRunningGuests(t *testing.T) {
	var guests []Guest
	for _, c := range []struct {
		name  string
		phase v1.VirtualMachineInstancePhase
	}{{"b", v1.Running}, {"starting", v1.Scheduling}, {"a", v1.Running}, {"over", v1.Failed}} {
		s := makeScene()
		s.g.VMI.Name, s.g.VMI.Status.Phase = c.name, c.phase
		guests = append(guests, s.g)
	}
	s := makeScene()
	s.g.VMI.DeletionTimestamp = &metav1.Time{}
	found := Check(s.w, append(guests, s.g))
	if len(found) != 2 || found[0].Name != "a" || found[1].Name != "b" || len(Stuck(found)) != 0 {
		t.Errorf("found %+v", found)
	}
}
