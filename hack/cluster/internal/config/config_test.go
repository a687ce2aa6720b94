// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package config

import (
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/hack/cluster/internal/layout"
	"github.com/vireo-project/vireo/hack/cluster/internal/pki"
	"github.com/vireo-project/vireo/hack/cluster/internal/plan"
)

func rendered(t *testing.T, nodes int, change func(*Facts)) Cluster {
	t.Helper()
	options := plan.Defaults()
	options.Nodes = nodes
	p, err := plan.New(options)
	if err != nil {
		t.Fatal(err)
	}
	facts := Facts{Kubernetes: "/k", Etcd: "/e", Containerd: "/c", CoreDNS: "/d", Runc: "/usr/sbin/runc", CNI: "/cni",
		BridgeNetfilter: true}
	if change != nil {
		change(&facts)
	}
	c, err := Render(p, layout.Layout{Root: "/state"}, facts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestShape(t *testing.T) {
	shape := func(c Cluster) string {
		t.Helper()
		s, err := c.Shape()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := shape(rendered(t, 2, nil))
	if again := shape(rendered(t, 2, nil)); again != base {
		t.Error("the same cluster has two shapes")
	}
	if other := shape(rendered(t, 1, nil)); other == base {
		t.Error("another number of nodes has the same shape")
	}
	if other := shape(rendered(t, 2, func(f *Facts) { f.Etcd = "/e2" })); other == base {
		t.Error("another etcd has the same shape")
	}
}

// The CoreDNS that hack/tools builds has the plugins that the Corefile names, and no others.
func TestPluginsOfCoreDNS(t *testing.T) {
	var named []string
	for line := range strings.Lines(rendered(t, 1, nil).Files["/state/config/Corefile"]) {
		if directive, ok := strings.CutPrefix(line, "    "); ok && !strings.HasPrefix(directive, " ") &&
			!strings.HasPrefix(directive, "}") {
			named = append(named, strings.Fields(directive)[0])
		}
	}
	program, err := parser.ParseFile(token.NewFileSet(), "../../../tools/coredns/main.go", nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var built []string
	for _, imported := range program.Imports {
		if name, ok := strings.CutPrefix(strings.Trim(imported.Path.Value, `"`), "github.com/coredns/coredns/plugin/"); ok {
			built = append(built, name)
		}
	}
	slices.Sort(named)
	slices.Sort(built)
	if len(named) == 0 || !slices.Equal(named, built) {
		t.Errorf("the Corefile names %v, CoreDNS is built with %v", named, built)
	}
}

func TestEveryNodeHasItsOwn(t *testing.T) {
	c := rendered(t, 2, nil)
	for _, node := range []string{"node1", "node2"} {
		var names []string
		for _, component := range c.Nodes[node] {
			names = append(names, component.Name)
			if component.Cgroup != "/vireo-cluster/"+node+"/system" {
				t.Errorf("%s runs in %s", component.Name, component.Cgroup)
			}
		}
		if want := []string{node + "/holder", node + "/containerd", node + "/kubelet",
			node + "/kube-proxy"}; !slices.Equal(names, want) {
			t.Errorf("components %v, want %v", names, want)
		}
		var kubelet struct{ CgroupRoot, Address string }
		if err := yaml.Unmarshal([]byte(c.Files["/state/config/"+node+"-kubelet.yaml"]), &kubelet); err != nil {
			t.Fatal(err)
		}
		if kubelet.CgroupRoot != "/vireo-cluster/"+node {
			t.Errorf("%s: kubelet's control group is %s", node, kubelet.CgroupRoot)
		}
	}
	if !strings.Contains(c.Files["/state/nodes/node2/net.d/10-vireo.conflist"], `"subnet": "10.244.2.0/24"`) {
		t.Error("node2's network does not have its Pod range")
	}
}

func TestNodeMountsArePrivateToTheNode(t *testing.T) {
	script := rendered(t, 2, nil).Files["/state/config/node2-init.sh"]
	for _, m := range layout.NodeMounts() {
		if want := "mount --bind /state/nodes/node2/" + m.Name + " " + m.Target + "\n"; !strings.Contains(script, want) {
			t.Errorf("the node does not %s", want)
		}
	}
	if strings.Index(script, "make-rshared /") > strings.Index(script, "--bind") {
		t.Error("mounts are made before the tree is shared: containers would not see later ones")
	}
}

func TestFrontProxyHasAnotherAuthority(t *testing.T) {
	for _, leaf := range rendered(t, 1, nil).Certificates {
		if (leaf.File == "front-proxy-client") != (leaf.Authority == pki.FrontProxy) {
			t.Errorf("%s is signed by %s", leaf.File, leaf.Authority)
		}
	}
}

func TestWhatTheMachineCannotDo(t *testing.T) {
	c := rendered(t, 1, func(f *Facts) { f.BridgeNetfilter, f.MayAdjustOOM = false, false })
	if !strings.Contains(c.Files["/state/config/node1-proxy.yaml"], "masqueradeAll: true") {
		t.Error("without netfilter on bridges, responses of a Service's Pod on the client's node would bypass kube-proxy")
	}
	if strings.Contains(c.Files["/state/config/node1-init.sh"], "bridge-nf") {
		t.Error("the node sets a sysctl that the machine does not have")
	}
	if !strings.Contains(c.Files["/state/config/node1-containerd.toml"], "restrict_oom_score_adj = true") {
		t.Error("containerd would lower a score that it may not lower")
	}
}

func TestManifestIsYAML(t *testing.T) {
	manifest := rendered(t, 1, func(f *Facts) { f.CSIDriver, f.CSISidecars = "/driver", "/sidecars" }).Manifest
	for _, document := range strings.Split(manifest, "\n---\n") {
		var object struct{ Kind string }
		if err := yaml.UnmarshalStrict([]byte(document), &map[string]any{}); err != nil {
			t.Errorf("%v in\n%s", err, document)
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" {
			t.Errorf("no kind (%v) in\n%s", err, document)
		}
	}
}

func TestExclusiveCPUs(t *testing.T) {
	policy := func(change func(*Facts)) bool {
		return strings.Contains(rendered(t, 1, change).Files["/state/config/node1-kubelet.yaml"],
			"cpuManagerPolicy: static")
	}
	if policy(nil) || !policy(func(f *Facts) { f.ExclusiveCPUs = true }) {
		t.Error("the CPU manager's policy is static without exclusive CPUs, or not with them")
	}
}

func TestStorage(t *testing.T) {
	names := func(list []Component) []string {
		var all []string
		for _, component := range list {
			all = append(all, component.Name)
		}
		return all
	}
	without := rendered(t, 1, nil)
	if all := append(names(without.ControlPlane), names(without.Nodes["node1"])...); !slices.Contains(all,
		"provisioner") || strings.Contains(strings.Join(all, " "), "csi") {
		t.Errorf("without the CSI driver there are %v", all)
	}
	with := rendered(t, 2, func(f *Facts) { f.CSIDriver, f.CSISidecars = "/driver", "/sidecars" })
	want := []string{"csi-controller", "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter",
		"snapshot-controller"}
	if all := names(with.ControlPlane); !slices.Equal(all[len(all)-len(want):], want) ||
		slices.Contains(all, "provisioner") {
		t.Errorf("with the CSI driver there are %v", all)
	}
	for _, component := range with.ControlPlane {
		if strings.HasPrefix(component.Name, "csi-") &&
			!strings.Contains(strings.Join(component.Command, " "), "=/state/csi.sock") {
			t.Errorf("%s does not use the driver's socket: %v", component.Name, component.Command)
		}
	}
	node := with.Nodes["node2"][len(with.Nodes["node2"])-1]
	if node.Name != "node2/csi" || !slices.Contains(node.Command, "-node=node2") ||
		!slices.Contains(node.Command, "-socket="+node.Probe.Socket) {
		t.Errorf("the node's driver is %+v", node)
	}
	if strings.Contains(with.Manifest, ProvisionerName) || !strings.Contains(with.Manifest, "provisioner: "+DriverName) {
		t.Error("the storage classes are not of the CSI driver")
	}
	source, err := os.ReadFile("../../csi/internal/driver/server.go")
	if err != nil || !strings.Contains(string(source), "Name = \""+DriverName+"\"") {
		t.Errorf("the driver has another name than %s, %v", DriverName, err)
	}
}
