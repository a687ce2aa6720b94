// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

// gateObjectGraph is KubeVirt's feature gate of the verb objectgraph.
const gateObjectGraph = "ObjectGraph"

// dependencyLabel is the label of a graph node with the type of the dependency, one of the four below. KubeVirt's
// (kubevirt/kubevirt pkg/virt-api/rest/objectgraph.go).
const dependencyLabel = "kubevirt.io/dependency-type"

const (
	forStorage = "storage"
	forNetwork = "network"
	forCompute = "compute"
	forConfig  = "config"
)

// graphKind is a kind of object in the graph, with the type of dependency.
type graphKind struct {
	schema.GroupKind
	dependency string
}

var (
	graphVM         = graphKind{v1.GroupVersion.WithKind("VirtualMachine").GroupKind(), forCompute}
	graphVMI        = graphKind{v1.GroupVersion.WithKind("VirtualMachineInstance").GroupKind(), forCompute}
	graphPod        = graphKind{schema.GroupKind{Kind: "Pod"}, forCompute}
	graphClaim      = graphKind{schema.GroupKind{Kind: "PersistentVolumeClaim"}, forStorage}
	graphDataVolume = graphKind{schema.GroupKind{Group: "cdi.kubevirt.io", Kind: "DataVolume"}, forStorage}
	graphConfigMap  = graphKind{schema.GroupKind{Kind: "ConfigMap"}, forConfig}
	graphSecret     = graphKind{schema.GroupKind{Kind: "Secret"}, forConfig}
	graphAccount    = graphKind{schema.GroupKind{Kind: "ServiceAccount"}, forConfig}
	graphRevision   = graphKind{schema.GroupKind{Group: "apps", Kind: "ControllerRevision"}, forConfig}
	graphNetwork    = graphKind{schema.GroupKind{Group: "k8s.cni.cncf.io", Kind: "NetworkAttachmentDefinition"},
		forNetwork}
)

// instancetypeGroup is the API group of instance types and preferences.
const instancetypeGroup = "instancetype.kubevirt.io"

// graph creates graph nodes for objects of a namespace.
type graph struct{ namespace string }

func (g graph) node(kind graphKind, name string, children ...v1.ObjectGraphNode) v1.ObjectGraphNode {
	return v1.ObjectGraphNode{
		ObjectReference: corev1.TypedObjectReference{
			APIGroup: ptr.To(kind.Group), Kind: kind.Kind, Name: name, Namespace: ptr.To(g.namespace),
		},
		Labels: map[string]string{dependencyLabel: kind.dependency}, Children: children,
	}
}

func optional(node v1.ObjectGraphNode) v1.ObjectGraphNode {
	node.Optional = ptr.To(true)
	return node
}

// vmObjectGraph returns the objects that a VM depends on.
func (a *API) vmObjectGraph(w http.ResponseWriter, r *http.Request) error {
	if err := a.checkObjectGraphGate(); err != nil {
		return err
	}
	m, err := a.vmWithVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	return writeGraph(w, r, graphOfVM(m))
}

// vmiObjectGraph returns the objects that a VMI depends on.
func (a *API) vmiObjectGraph(w http.ResponseWriter, r *http.Request) error {
	if err := a.checkObjectGraphGate(); err != nil {
		return err
	}
	vmi, err := a.requireVMI(r.Context(), key(r))
	if err != nil {
		return err
	}
	return writeGraph(w, r, graphOfVMI(vmi))
}

func (a *API) checkObjectGraphGate() error {
	if !a.Config().IsEnabled(gateObjectGraph) {
		return apierrors.NewBadRequest("ObjectGraph feature gate not enabled: Unable to return object graph.")
	}
	return nil
}

// writeGraph writes a graph without the nodes that the request's options exclude.
func writeGraph(w http.ResponseWriter, r *http.Request, root v1.ObjectGraphNode) error {
	options := &v1.ObjectGraphOptions{}
	if err := decode(r, options); err != nil {
		return err
	}
	selector := labels.Everything()
	if options.LabelSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(options.LabelSelector); err != nil {
			return apierrors.NewBadRequest("labelSelector: " + err.Error())
		}
	}
	root.Children = prune(root.Children, ptr.Deref(options.IncludeOptionalNodes, true), selector)
	writeObject(w, &root)
	return nil
}

// prune removes excluded nodes together with their children.
func prune(nodes []v1.ObjectGraphNode, withOptional bool, selector labels.Selector) []v1.ObjectGraphNode {
	kept := []v1.ObjectGraphNode{}
	for _, node := range nodes {
		if !withOptional && ptr.Deref(node.Optional, false) || !selector.Matches(labels.Set(node.Labels)) {
			continue
		}
		node.Children = prune(node.Children, withOptional, selector)
		kept = append(kept, node)
	}
	return kept
}

func graphOfVM(m vmWithVMI) v1.ObjectGraphNode {
	g := graph{m.vm.Namespace}
	children := []v1.ObjectGraphNode{}
	if m.vmi != nil && m.vm.Status.Created {
		children = append(children, g.node(graphVMI, m.vmi.Name, g.pods(m.vmi)...))
	}
	if i := m.vm.Spec.Instancetype; i != nil {
		children = append(children, g.matcher(i.Kind, "VirtualMachineClusterInstancetype", i.Name, i.RevisionName,
			m.vm.Status.InstancetypeRef)...)
	}
	if p := m.vm.Spec.Preference; p != nil {
		children = append(children, g.matcher(p.Kind, "VirtualMachineClusterPreference", p.Name, p.RevisionName,
			m.vm.Status.PreferenceRef)...)
	}
	if m.vm.Spec.Template != nil {
		children = append(children, g.dependencies(&m.vm.Spec.Template.Spec, m.vmi)...)
	}
	return g.node(graphVM, m.vm.Name, children...)
}

func graphOfVMI(vmi *v1.VirtualMachineInstance) v1.ObjectGraphNode {
	g := graph{vmi.Namespace}
	return g.node(graphVMI, vmi.Name, append(g.pods(vmi), g.dependencies(&vmi.Spec, vmi)...)...)
}

// pods returns the launcher Pod of a VMI that has one. Its name is derived from the VMI, so that no Pods are read.
func (g graph) pods(vmi *v1.VirtualMachineInstance) []v1.ObjectGraphNode {
	if len(vmi.Status.ActivePods) == 0 {
		return nil
	}
	return []v1.ObjectGraphNode{g.node(graphPod, podspec.PodName(vmi))}
}

// matcher returns an instance type or preference and its revision. The former is optional: a VM that has started uses
// the revision.
func (g graph) matcher(
	kind, defaultKind, name, revision string, status *v1.InstancetypeStatusRef,
) []v1.ObjectGraphNode {
	if kind == "" {
		kind = defaultKind
	}
	in := g
	if strings.Contains(strings.ToLower(kind), "cluster") {
		in = graph{}
	}
	nodes := []v1.ObjectGraphNode{
		optional(in.node(graphKind{schema.GroupKind{Group: instancetypeGroup, Kind: kind}, forConfig}, name)),
	}
	switch {
	case status != nil && status.ControllerRevisionRef != nil:
		nodes = append(nodes, g.node(graphRevision, status.ControllerRevisionRef.Name))
	case status == nil && revision != "":
		nodes = append(nodes, g.node(graphRevision, revision))
	}
	return nodes
}

// dependencies returns the Secrets, volumes and networks of a spec, and the claims of the VMI's persistent state.
func (g graph) dependencies(spec *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) []v1.ObjectGraphNode {
	nodes := []v1.ObjectGraphNode{}
	for i := range spec.AccessCredentials {
		if secret := spec.AccessCredentials[i].SecretName(); secret != "" {
			nodes = append(nodes, g.node(graphSecret, secret))
		}
	}
	for i := range spec.Volumes {
		nodes = append(nodes, g.volume(&spec.Volumes[i].VolumeSource)...)
	}
	nodes = append(nodes, g.stateClaims(spec, vmi)...)
	for _, n := range spec.Networks {
		if n.Multus == nil || n.Multus.NetworkName == "" {
			continue
		}
		in, name := g, n.Multus.NetworkName
		if namespace, definition, qualified := strings.Cut(name, "/"); qualified {
			in, name = graph{namespace}, definition
		}
		nodes = append(nodes, optional(in.node(graphNetwork, name)))
	}
	return nodes
}

func (g graph) volume(v *v1.VolumeSource) []v1.ObjectGraphNode {
	switch {
	case v.DataVolume != nil:
		return []v1.ObjectGraphNode{g.node(graphDataVolume, v.DataVolume.Name, g.node(graphClaim, v.DataVolume.Name))}
	case v.PersistentVolumeClaim != nil:
		return []v1.ObjectGraphNode{g.node(graphClaim, v.PersistentVolumeClaim.ClaimName)}
	case v.ConfigMap != nil:
		return []v1.ObjectGraphNode{g.node(graphConfigMap, v.ConfigMap.Name)}
	case v.Secret != nil:
		return []v1.ObjectGraphNode{g.node(graphSecret, v.Secret.SecretName)}
	case v.ServiceAccount != nil:
		return []v1.ObjectGraphNode{g.node(graphAccount, v.ServiceAccount.ServiceAccountName)}
	case v.CloudInitNoCloud != nil:
		return g.secrets(v.CloudInitNoCloud.UserDataSecretRef, v.CloudInitNoCloud.NetworkDataSecretRef)
	case v.CloudInitConfigDrive != nil:
		return g.secrets(v.CloudInitConfigDrive.UserDataSecretRef, v.CloudInitConfigDrive.NetworkDataSecretRef)
	}
	return nil
}

func (g graph) secrets(references ...*corev1.LocalObjectReference) []v1.ObjectGraphNode {
	nodes := []v1.ObjectGraphNode{}
	for _, reference := range references {
		if reference != nil {
			nodes = append(nodes, g.node(graphSecret, reference.Name))
		}
	}
	return nodes
}

// stateClaims returns the claims of persistent EFI variables and TPM state. Their names are only in the VMI's status.
func (g graph) stateClaims(spec *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance) []v1.ObjectGraphNode {
	if vmi == nil {
		return nil
	}
	own := map[string]bool{}
	for i := range spec.Volumes {
		own[spec.Volumes[i].Name] = true
	}
	nodes := []v1.ObjectGraphNode{}
	for _, volume := range vmi.Status.VolumeStatus {
		if claim := volume.PersistentVolumeClaimInfo; claim != nil && !own[volume.Name] {
			nodes = append(nodes, g.node(graphClaim, claim.ClaimName))
		}
	}
	return nodes
}
