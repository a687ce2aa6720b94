// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestExportProxyIsInstalledIfItHasAnImage(t *testing.T) {
	for image, want := range map[string]int{"": 0, "p:1": 4} {
		s := Settings{Namespace: "kubevirt", Config: clusterconfig.Default(), Nodes: 3}
		s.Config.Images = clusterconfig.Images{Launcher: "l:1", Handler: "h:1", Broker: "b:1", API: "a:1", ExportProxy: image}
		objects, err := Render(s)
		if err != nil {
			t.Fatal(err)
		}
		objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
			return !strings.HasPrefix(o.GetName(), ExportProxyName)
		})
		if len(objects) != want {
			t.Errorf("image %q: got %d objects", image, len(objects))
		}
		for _, o := range objects {
			if o.GetKind() != "Deployment" {
				continue
			}
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			container, _ := containers[0].(map[string]any)
			if replicas, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); replicas != 2 ||
				container["image"] != image {
				t.Errorf("got %d replicas of %v", replicas, container["image"])
			}
		}
	}
}

// With an authorization of metrics, it serves none.
func TestMetricsOfExportProxy(t *testing.T) {
	for authorization, want := range map[bool]int{false: 2, true: 1} {
		s := Settings{Namespace: "kubevirt", Config: clusterconfig.Default(), Nodes: 3, MetricsAuthorization: authorization}
		s.Config.Images = clusterconfig.Images{Launcher: "l:1", Handler: "h:1", Broker: "b:1", API: "a:1", ExportProxy: "p:1"}
		objects, err := Render(s)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == "Deployment" && o.GetName() == ExportProxyName
		})
		containers, _, _ := unstructured.NestedSlice(objects[at].Object, "spec", "template", "spec", "containers")
		container, _ := containers[0].(map[string]any)
		ports, _ := container["ports"].([]any)
		args, _ := container["args"].([]any)
		// The Service of all components' metrics must not select it: its port would split the Endpoints.
		if _, selected, _ := unstructured.NestedString(objects[at].Object, "spec", "template", "metadata", "labels",
			ScrapeLabel); selected {
			t.Error("the Service of the other components selects the Pods")
		}
		scraped := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
			selector, _, _ := unstructured.NestedStringMap(o.Object, "spec", "selector")
			return o.GetKind() == "Service" && o.GetLabels()[ScrapeLabel] == "true" && selector["kubevirt.io"] == ExportProxyName
		})
		if len(ports) != want || len(args) != 2*want || scraped == authorization {
			t.Errorf("authorization %t: got ports %v, arguments %v, scraped: %t", authorization, ports, args, scraped)
		}
	}
}

// virt-exportproxy is updated after virt-controller and before virt-api.
func TestExportProxyHasItsTurn(t *testing.T) {
	done := Component{Exists: true, Current: true, Rollout: Rollout{Done: true}}
	old := Component{Exists: true, Rollout: Rollout{Done: true}}
	w := Observed{Brokers: Daemons{Component: done}, Agents: Daemons{Component: done}, Controller: done, API: old,
		Proxy: &old, Forward: true}
	if p := Next(w); !p.Proxy || p.API {
		t.Errorf("got %+v", p)
	}
	w.Proxy = &done
	if p := Next(w); p.Proxy || !p.API {
		t.Errorf("got %+v", p)
	}
	w.Controller = old
	w.Proxy = &old
	if p := Next(w); p.Proxy || p.API || !p.Controller {
		t.Errorf("got %+v", p)
	}
	w.Proxy = &Component{}
	if p := Next(w); !p.Proxy {
		t.Errorf("what is missing waits: %+v", p)
	}
}
