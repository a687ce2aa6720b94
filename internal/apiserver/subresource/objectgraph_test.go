// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// lines formats a graph as an indented tree.
func lines(node v1.ObjectGraphNode, depth string) []string {
	line := depth + node.ObjectReference.Kind + " " + ptr.Deref(node.ObjectReference.Namespace, "") + "/" +
		node.ObjectReference.Name +
		" " + node.Labels["kubevirt.io/dependency-type"]
	if ptr.Deref(node.Optional, false) {
		line += " optional"
	}
	all := []string{line}
	for _, child := range node.Children {
		all = append(all, lines(child, depth+"  ")...)
	}
	return all
}

func TestObjectGraph(t *testing.T) {
	template := running("vm").PVC("disk", "claim").Volume("dv",
		v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "root"}}).
		CloudInitSecret("cloud", "user", "net").Multus("second", "other/blue")
	vm := builder.MakeVM("vm").Namespace("ns").UID("1").Template(template).With(func(vm *v1.VirtualMachine) {
		vm.Status.Created = true
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", RevisionName: "small-1"}
	}).Obj()
	vmi := template.With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.ActivePods = map[types.UID]string{"p": node}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{
			{Name: "disk", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "claim"}},
			{Name: "vm-state", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "persistent-state-for-vm-1"}},
		}
	}).Obj()
	w := newWorld(t, vm, vmi)
	w.expect(http.MethodGet, vmPath+"vm/objectgraph", "", 400,
		"ObjectGraph feature gate not enabled: Unable to return object graph.")
	w.config.FeatureGates = clusterconfig.NewFeatureGates([]string{"ObjectGraph"}, nil)
	w.expect(http.MethodGet, vmPath+"none/objectgraph", "", 404, `virtualmachine.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmiPath+"none/objectgraph", "", 404, `virtualmachineinstance.kubevirt.io "none" not found`)
	w.expect(http.MethodGet, vmPath+"vm/objectgraph", `{"labelSelector":{"matchExpressions":[{"key":"a","operator":"Odd"}]}}`, 400, "labelSelector")
	pod := "Pod ns/" + podspec.PodName(vmi) + " compute"
	dependencies := []string{
		"  PersistentVolumeClaim ns/claim storage", "  DataVolume ns/root storage",
		"    PersistentVolumeClaim ns/root storage",
		"  Secret ns/user config", "  Secret ns/net config", "  PersistentVolumeClaim ns/persistent-state-for-vm-1 storage",
	}
	network := "  NetworkAttachmentDefinition other/blue network optional"
	for _, tc := range []struct {
		path, body string
		want       []string
	}{
		{vmiPath + "vm/objectgraph", "", append(append([]string{"VirtualMachineInstance ns/vm compute", "  " + pod}, dependencies...), network)},
		{vmPath + "vm/objectgraph", `{"includeOptionalNodes":false}`, append([]string{
			"VirtualMachine ns/vm compute", "  VirtualMachineInstance ns/vm compute", "    " + pod,
			"  ControllerRevision ns/small-1 config",
		}, dependencies...)},
		{vmPath + "vm/objectgraph", `{"labelSelector":{"matchLabels":{"kubevirt.io/dependency-type":"network"}}}`, []string{
			"VirtualMachine ns/vm compute", network,
		}},
	} {
		code, text := w.do(http.MethodGet, tc.path, tc.body)
		root := v1.ObjectGraphNode{}
		if err := json.Unmarshal([]byte(text), &root); code != http.StatusOK || err != nil {
			t.Fatalf("got %d %s", code, text)
		}
		if diff := cmp.Diff(strings.Join(tc.want, "\n"), strings.Join(lines(root, ""), "\n")); diff != "" {
			t.Errorf("%s %s: %s", tc.path, tc.body, diff)
		}
	}
}
