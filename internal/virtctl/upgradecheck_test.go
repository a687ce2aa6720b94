// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl"
	"github.com/vireo-project/vireo/test/builder"
	virtctltest "github.com/vireo-project/vireo/test/fakes/virtctl"
)

// upgradeCluster returns a cluster with two nodes and, in two namespaces, a guest that can be migrated and two that
// cannot.
func upgradeCluster(t *testing.T, methods ...v1.WorkloadUpdateMethod) *virtctltest.Server {
	t.Helper()
	s := virtctltest.NewServer(t)
	kubevirt := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = methods
	s.Add(kubevirt)
	for _, name := range []string{"node-1", "node-2"} {
		s.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64", v1.SupportedMachineTypeLabel + "q35": "true",
			corev1.LabelHostname: name,
		}}})
	}
	guest := func(namespace, name string, migratable corev1.ConditionStatus, message string,
		change func(*v1.VirtualMachineInstance)) {
		vmi := builder.MakeVMI(name).Namespace(namespace).UID(name).With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.LauncherContainerImageVersion = v1.Running, "node-1", "launcher:v1"
		}).With(change).Condition(v1.VirtualMachineInstanceIsMigratable, migratable, "DisksNotLiveMigratable", message)
		s.Add(vmi.Obj())
	}
	keep := func(*v1.VirtualMachineInstance) {}
	guest("shop", "web", corev1.ConditionTrue, "", keep)
	guest("shop", "db", corev1.ConditionFalse, "cannot migrate VMI: claim data is not shared",
		func(vmi *v1.VirtualMachineInstance) {
			vmi.Labels = map[string]string{v1.OutdatedLauncherImageLabel: ""}
			vmi.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"}
		})
	guest("lab", "old", corev1.ConditionFalse, "has a\x1b[31m GPU", keep)
	return s
}

func TestUpgradeCheck(t *testing.T) {
	run := func(flags string, methods ...v1.WorkloadUpdateMethod) virtctltest.Result {
		return upgradeCluster(t, methods...).Run(virtctl.Execute,
			append([]string{"adm", "upgrade-check"}, strings.Fields(flags)...)...)
	}
	const pinned = "no other node has what it requires (kubernetes.io/arch=amd64,kubernetes.io/hostname=node-1,machine-type.node.kubevirt.io/q35=true): node node-2"
	for flags, want := range map[string]string{
		"": "NAMESPACE   NAME   NODE     MIGRATABLE   ON-UPGRADE   REASON                   MESSAGE\n" +
			"lab         old    node-1   false        Stays        DisksNotLiveMigratable   has a[31m GPU\n" +
			"shop        db     node-1   false        Stays        DisksNotLiveMigratable   cannot migrate VMI: claim data is not shared\n" +
			"                                                      NodeSelector             " + pinned + "\n" +
			"\n2 of 3 running guests cannot be migrated. 1 still have an older launcher from an earlier upgrade.\n",
		"-n lab": "NAMESPACE   NAME   NODE     MIGRATABLE   ON-UPGRADE   REASON                   MESSAGE\n" +
			"lab         old    node-1   false        Stays        DisksNotLiveMigratable   has a[31m GPU\n" +
			"\n1 of 1 running guests cannot be migrated.\n",
		"-n lab -o wide": "NAMESPACE   NAME   NODE     MIGRATABLE   ON-UPGRADE   EVICTION   OUTDATED   LAUNCHER      REASON                   MESSAGE\n" +
			"lab         old    node-1   false        Stays        None       false      launcher:v1   DisksNotLiveMigratable   has a[31m GPU; a drain of its node shuts it down\n" +
			"\n1 of 1 running guests cannot be migrated.\n",
	} {
		if diff := cmp.Diff(virtctltest.Result{Out: want, Code: 2},
			run(flags, v1.WorkloadUpdateMethodLiveMigrate)); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", flags, diff)
		}
	}
	if got := run("-n nothing"); got.Code != 0 || got.Out != "There are no running guests.\n" {
		t.Errorf("an empty namespace: %+v", got)
	}
	if got := run("--all -n shop"); got.Code != 2 || !strings.Contains(got.Out, "true         Stays        -") ||
		!strings.Contains(got.Out, "has no methods") {
		t.Errorf("all: %+v", got)
	}
	expectFailure(t, run("-o name"), "it is wide, json or yaml")

	got := run("-o json --all", v1.WorkloadUpdateMethodLiveMigrate)
	var report struct {
		Checked, NotMigratable, Outdated int
		Guests                           []struct {
			Name, OnUpgrade string
			Migratable      bool
			Problems        []struct{ Reason string }
		}
	}
	if err := json.Unmarshal([]byte(got.Out), &report); err != nil || got.Code != 2 {
		t.Fatalf("%v: %+v", err, got)
	}
	if report.Checked != 3 || report.NotMigratable != 2 || report.Outdated != 1 || len(report.Guests) != 3 ||
		len(report.Guests[1].Problems) != 2 || report.Guests[2].OnUpgrade != "Migrates" {
		t.Errorf("report %+v", report)
	}
}

func TestUpgradeCheckWithoutProblems(t *testing.T) {
	s := virtctltest.NewServer(t)
	kubevirt := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	kubevirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods = []v1.WorkloadUpdateMethod{
		v1.WorkloadUpdateMethodLiveMigrate}
	vmi := builder.MakeVMI("web").Namespace("shop").UID("web").With(
		func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Running })
	s.Add(kubevirt, vmi.Condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "").Obj(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2", Labels: map[string]string{
			v1.NodeSchedulable: "true", corev1.LabelArchStable: "amd64", v1.SupportedMachineTypeLabel + "q35": "true",
		}}})
	if got := s.Run(virtctl.Execute, "adm",
		"upgrade-check"); got != (virtctltest.Result{Out: "All 1 running guests can be migrated.\n"}) {
		t.Errorf("%+v", got)
	}
}
