// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clientcompat

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	resourceapi "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	backupv1 "kubevirt.io/api/backup/v1alpha1"
	v1 "kubevirt.io/api/core/v1"
	instancetypev1beta1 "kubevirt.io/api/instancetype/v1beta1"
	"kubevirt.io/client-go/kubecli"
)

// node is the node of clientworld's agent.
const node = "node1"

// runVM creates a VM and its VMI with the status of a running one.
func runVM(
	t *testing.T, name string, strategy v1.VirtualMachineRunStrategy, conditions ...v1.VirtualMachineInstanceConditionType,
) {
	t.Helper()
	ctx := t.Context()
	vm, err := kubevirt.VirtualMachine(namespace).Create(ctx, newVM(name, strategy), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	vm.Status.Created = true
	if _, err = kubevirt.VirtualMachine(namespace).UpdateStatus(ctx, vm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	vmi := newVMI(name)
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	vmi.Spec.Domain.Devices.ClientPassthrough = &v1.ClientPassthroughDevices{}
	yes := true
	vmi.Spec.Domain.Devices.AutoattachVSOCK = &yes
	if _, err = kubevirt.VirtualMachineInstance(namespace).Create(ctx, vmi, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	status := v1.VirtualMachineInstanceStatus{
		Phase: v1.Running, NodeName: node,
		Interfaces: []v1.VirtualMachineInstanceNetworkInterface{{Name: "default", IP: "10.0.0.7"}},
	}
	for _, kind := range conditions {
		status.Conditions = append(status.Conditions,
			v1.VirtualMachineInstanceCondition{Type: kind, Status: corev1.ConditionTrue})
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	_, err = kubevirt.VirtualMachineInstance(namespace).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// expectCode compares the code and the message of an error.
func expectCode(t *testing.T, what string, err error, code int, message string) {
	t.Helper()
	if !isError(err, code, message) {
		t.Errorf("%s: got %v, want %d %q", what, err, code, message)
	}
}

// isError reports whether an error has a code and a message.
func isError(err error, code int, message string) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && int(status.Status().Code) == code && strings.Contains(err.Error(), message)
}

func expectNone(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestVirtualMachine(t *testing.T) {
	ctx := t.Context()
	vms := kubevirt.VirtualMachine(namespace)
	if _, err := vms.Create(ctx, newVM("halted", v1.RunStrategyHalted), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expectCode(t, "stop a halted VM", vms.Stop(ctx, "halted", &v1.StopOptions{}), http.StatusConflict, "VM is not running")
	expectNone(t, "start", vms.Start(ctx, "halted", &v1.StartOptions{}))
	started, err := vms.Get(ctx, "halted", metav1.GetOptions{})
	if err != nil || *started.Spec.RunStrategy != v1.RunStrategyAlways {
		t.Errorf("start: %v", err)
	}
	expectCode(t, "start nothing", vms.Start(ctx, "none", &v1.StartOptions{}), http.StatusNotFound, `virtualmachine.kubevirt.io "none" not found`)

	runVM(t, "manual", v1.RunStrategyManual)
	expectCode(t, "start a running VM", vms.Start(ctx, "manual", &v1.StartOptions{}), http.StatusConflict,
		"VM is already running")
	grace := int64(0)
	expectNone(t, "restart", vms.Restart(ctx, "manual", &v1.RestartOptions{DryRun: []string{metav1.DryRunAll}}))
	expectNone(t, "restart", vms.Restart(ctx, "manual", &v1.RestartOptions{GracePeriodSeconds: &grace}))
	expectNone(t, "stop", vms.Stop(ctx, "manual", &v1.StopOptions{GracePeriod: &grace}))
	stopped, err := vms.Get(ctx, "manual", metav1.GetOptions{})
	if err != nil || len(stopped.Status.StateChangeRequests) != 1 ||
		stopped.Status.StateChangeRequests[0].Action != v1.StopRequest {
		t.Errorf("stop: %v %v", stopped.Status.StateChangeRequests, err)
	}
	expectNone(t, "migrate", vms.Migrate(ctx, "manual", &v1.MigrateOptions{}))
	migrations, err := kubevirt.VirtualMachineInstanceMigration(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(migrations.Items) != 1 || !strings.HasPrefix(migrations.Items[0].Name, "kubevirt-migrate-vm-") {
		t.Errorf("migrate: %v %v", migrations, err)
	}
	expanded, err := vms.GetWithExpandedSpec(ctx, "manual")
	if err != nil || expanded.Name != "manual" {
		t.Errorf("expand-spec: %v", err)
	}
	graph, err := vms.ObjectGraph(ctx, "manual", &v1.ObjectGraphOptions{})
	if err != nil || graph.ObjectReference.Name != "manual" || len(graph.Children) == 0 {
		t.Errorf("objectgraph: %v %v", graph, err)
	}
	expectNone(t, "evacuate/cancel",
		vms.EvacuateCancel(ctx, "manual", &v1.EvacuateCancelOptions{EvacuationNodeName: node}))
	expectCode(t, "addvolume", vms.AddVolume(ctx, "manual", &v1.AddVolumeOptions{}), http.StatusBadRequest,
		"AddVolumeOptions requires name to be set")
	expectCode(t, "removevolume", vms.RemoveVolume(ctx, "manual", &v1.RemoveVolumeOptions{Name: "none"}),
		http.StatusConflict,
		"Unable to remove volume [none] because it does not exist")
	expectCode(t, "memorydump", vms.MemoryDump(ctx, "manual", &v1.VirtualMachineMemoryDumpRequest{}),
		http.StatusBadRequest,
		"Memory dump requires claim name to be set")
	expectCode(t, "removememorydump", vms.RemoveMemoryDump(ctx, "manual"), http.StatusConflict, "no association found")
}

func TestVirtualMachineInstance(t *testing.T) {
	ctx := t.Context()
	runVM(t, "runs", v1.RunStrategyAlways, v1.VirtualMachineInstanceAgentConnected)
	runVM(t, "paused", v1.RunStrategyAlways, v1.VirtualMachineInstancePaused)
	vmis := kubevirt.VirtualMachineInstance(namespace)
	for what, err := range map[string]error{
		"pause":           vmis.Pause(ctx, "runs", &v1.PauseOptions{}),
		"pause, dry":      vmis.Pause(ctx, "runs", &v1.PauseOptions{DryRun: []string{metav1.DryRunAll}}),
		"unpause":         vmis.Unpause(ctx, "paused", &v1.UnpauseOptions{}),
		"freeze":          vmis.Freeze(ctx, "runs", time.Minute),
		"unfreeze":        vmis.Unfreeze(ctx, "runs"),
		"reset":           vmis.Reset(ctx, "runs"),
		"softreboot":      vmis.SoftReboot(ctx, "runs"),
		"evacuate/cancel": vmis.EvacuateCancel(ctx, "runs", &v1.EvacuateCancelOptions{EvacuationNodeName: node}),
	} {
		expectNone(t, what, err)
	}
	expectCode(t, "pause what is paused", vmis.Pause(ctx, "paused", &v1.PauseOptions{}), http.StatusConflict,
		"VMI is already paused")
	expectCode(t, "unpause what runs", vmis.Unpause(ctx, "runs", &v1.UnpauseOptions{}), http.StatusConflict,
		"VMI is not paused")
	expectCode(t, "pause nothing", vmis.Pause(ctx, "none", &v1.PauseOptions{}), http.StatusNotFound, `virtualmachineinstance.kubevirt.io "none" not found`)

	info, err := vmis.GuestOsInfo(ctx, "runs")
	if err != nil || info.Hostname != "guest" {
		t.Errorf("guestosinfo: %v %v", info, err)
	}
	users, err := vmis.UserList(ctx, "runs")
	if err != nil || len(users.Items) != 1 || users.Items[0].UserName != "root" {
		t.Errorf("userlist: %v %v", users, err)
	}
	filesystems, err := vmis.FilesystemList(ctx, "runs")
	if err != nil || len(filesystems.Items) != 1 || filesystems.Items[0].DiskName != "vda1" {
		t.Errorf("filesystemlist: %v %v", filesystems, err)
	}
	_, err = vmis.UserList(ctx, "paused")
	expectCode(t, "userlist without agent", err, http.StatusConflict, "VMI does not have guest agent connected")
	picture, err := vmis.Screenshot(ctx, "runs", &v1.ScreenshotOptions{MoveCursor: true})
	if err != nil || !strings.HasPrefix(string(picture), "\x89PNG") {
		t.Errorf("vnc/screenshot: %q %v", picture, err)
	}
	graph, err := vmis.ObjectGraph(ctx, "runs", &v1.ObjectGraphOptions{})
	if err != nil || graph.ObjectReference.Kind != "VirtualMachineInstance" {
		t.Errorf("objectgraph: %v %v", graph, err)
	}
	expectNotImplemented(t, ctx)
}

func expectNotImplemented(t *testing.T, ctx context.Context) { //nolint:revive // the test comes first, as in the standard library
	t.Helper()
	vmis := kubevirt.VirtualMachineInstance(namespace)
	_, noChain := vmis.SEVFetchCertChain(ctx, "runs")
	_, noMeasurement := vmis.SEVQueryLaunchMeasurement(ctx, "runs")
	for what, err := range map[string]error{
		"backup":                     vmis.Backup(ctx, "runs", &backupv1.BackupOptions{}),
		"redefine-checkpoint":        vmis.RedefineCheckpoint(ctx, "runs", &backupv1.BackupCheckpoint{}),
		"sev/fetchcertchain":         noChain,
		"sev/querylaunchmeasurement": noMeasurement,
		"sev/setupsession":           vmis.SEVSetupSession(ctx, "runs", &v1.SEVSessionOptions{}),
		"sev/injectlaunchsecret":     vmis.SEVInjectLaunchSecret(ctx, "runs", &v1.SEVSecretOptions{}),
	} {
		expectCode(t, what, err, http.StatusNotImplemented,
			"virtualmachineinstances/"+what+" is not implemented by Vireo yet")
	}
}

func TestCluster(t *testing.T) {
	version, err := kubevirt.ServerVersion().Get()
	if err != nil || version.GitVersion == "" || version.GoVersion == "" {
		t.Errorf("version: %v %v", version, err)
	}
	const noMessage = "" // the client does not decode the Status of raw responses
	if image, err := kubevirt.GuestfsVersion().Get(); err != nil ||
		*image != (kubecli.GuestfsInfo{Registry: "registry.example/vireo", Tag: "v1"}) {
		t.Errorf("guestfs: %+v %v", image, err)
	}
	const disabled = `profiler. "ClusterProfiler" feature gate must be enabled`
	expectCode(t, "profiler", kubevirt.ClusterProfiler().Start(), http.StatusForbidden, "Unable to start "+disabled)
	expectCode(t, "profiler", kubevirt.ClusterProfiler().Stop(), http.StatusForbidden, "Unable to stop "+disabled)
	_, err = kubevirt.ClusterProfiler().Dump(&v1.ClusterProfilerRequest{})
	expectCode(t, "profiler", err, http.StatusForbidden, noMessage)

	expanded, err := kubevirt.ExpandSpec(namespace).ForVirtualMachine(newVM("unborn", v1.RunStrategyHalted))
	if err != nil || expanded.Name != "unborn" || expanded.Namespace != namespace {
		t.Errorf("expand-vm-spec: %v", err)
	}
	typed := newVM("unborn", v1.RunStrategyHalted)
	typed.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "expanded"}
	_, err = kubevirt.ExpandSpec(namespace).ForVirtualMachine(typed)
	expectCode(t, "expand-vm-spec", err, http.StatusBadRequest, `"expanded" not found`)
	if _, err := kubevirt.VirtualMachineClusterInstancetype().Create(t.Context(),
		&instancetypev1beta1.VirtualMachineClusterInstancetype{
			ObjectMeta: metav1.ObjectMeta{Name: "expanded"}, Spec: instancetypev1beta1.VirtualMachineInstancetypeSpec{
				CPU:    instancetypev1beta1.CPUInstancetype{Guest: 2},
				Memory: instancetypev1beta1.MemoryInstancetype{Guest: resourceapi.MustParse("1Gi")},
			},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	expanded, err = kubevirt.ExpandSpec(namespace).ForVirtualMachine(typed)
	if err != nil || expanded.Spec.Instancetype != nil || expanded.Spec.Template.Spec.Domain.CPU.Sockets != 2 {
		t.Errorf("expand-vm-spec: %v", err)
	}
	if _, err := kubevirt.RestClient().Get().AbsPath("/apis/subresources.kubevirt.io/v1/healthz").DoRaw(
		t.Context()); err != nil {
		t.Errorf("healthz: %v", err)
	}
}
