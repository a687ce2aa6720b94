// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package takeover decides whether a cluster that KubeVirt manages can be taken over, and what becomes of each running
// guest. It is pure.
package takeover

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// Cluster is what a plan is made from.
type Cluster struct {
	// KubeVirt is the object of the installation, Operator the Deployment virt-operator, or nil.
	KubeVirt *v1.KubeVirt
	Operator *appsv1.Deployment
	// ServerVersion is the API server's, such as v1.35.2.
	ServerVersion string
	// OpenShift reports whether the API server has OpenShift's API.
	OpenShift bool
	// StoredVersions are those of KubeVirt's CRDs, Served those that Vireo serves, by the name of the CRD.
	StoredVersions, Served map[string][]string
	// NetworkPolicies are the names of those in the install namespace.
	NetworkPolicies []string
	// Presets counts the VirtualMachineInstancePresets, Exports the VirtualMachineExports.
	Presets, Exports int
	// Work has the objects of work that may be unfinished: those of WorkKinds.
	Work []unstructured.Unstructured
	// VMs, VMIs and Migrations are all of the cluster; Pods those with the label of a launcher.
	VMs        []v1.VirtualMachine
	VMIs       []v1.VirtualMachineInstance
	Migrations []v1.VirtualMachineInstanceMigration
	Pods       []corev1.Pod
}

// Served are the versions that Vireo serves of KubeVirt's CRDs, the one that it stores last.
var Served = map[string][]string{
	"kubevirts.kubevirt.io":                                       {"v1alpha3", "v1"},
	"virtualmachines.kubevirt.io":                                 {"v1alpha3", "v1"},
	"virtualmachineinstances.kubevirt.io":                         {"v1alpha3", "v1"},
	"virtualmachineinstancemigrations.kubevirt.io":                {"v1alpha3", "v1"},
	"virtualmachineinstancereplicasets.kubevirt.io":               {"v1alpha3", "v1"},
	"virtualmachinepools.pool.kubevirt.io":                        {"v1alpha1", "v1beta1"},
	"virtualmachinesnapshots.snapshot.kubevirt.io":                {"v1alpha1", "v1beta1"},
	"virtualmachinesnapshotcontents.snapshot.kubevirt.io":         {"v1alpha1", "v1beta1"},
	"virtualmachinerestores.snapshot.kubevirt.io":                 {"v1alpha1", "v1beta1"},
	"virtualmachineclones.clone.kubevirt.io":                      {"v1alpha1", "v1beta1"},
	"virtualmachineexports.export.kubevirt.io":                    {"v1beta1", "v1"},
	"virtualmachinebackups.backup.kubevirt.io":                    {"v1alpha1"},
	"virtualmachinebackuptrackers.backup.kubevirt.io":             {"v1alpha1"},
	"migrationpolicies.migrations.kubevirt.io":                    {"v1alpha1"},
	"virtualmachineinstancetypes.instancetype.kubevirt.io":        {"v1beta1"},
	"virtualmachineclusterinstancetypes.instancetype.kubevirt.io": {"v1beta1"},
	"virtualmachinepreferences.instancetype.kubevirt.io":          {"v1beta1"},
	"virtualmachineclusterpreferences.instancetype.kubevirt.io":   {"v1beta1"},
}

// Plan is the result.
type Plan struct {
	// Version is KubeVirt's.
	Version string `json:"version"`
	// Stops have to be removed before a takeover. Notes are consequences that a user should know.
	Stops []Finding `json:"stops"`
	Notes []Finding `json:"notes"`
	// Guests are the running guests, sorted by namespace and name.
	Guests []Guest `json:"guests"`
}

// Finding is something about the cluster.
type Finding struct {
	// Object is what it is about, such as "Deployment kubevirt/virt-operator".
	Object string `json:"object"`
	// Message says what is wrong or will change, and what to do.
	Message string `json:"message"`
}

// Make returns the plan for a cluster.
func Make(c *Cluster) Plan {
	p := &Plan{Stops: []Finding{}, Notes: []Finding{}, Guests: []Guest{}}
	p.checkInstallation(c)
	p.checkCluster(c)
	p.checkWork(c)
	p.noteConfiguration(c)
	p.planGuests(c)
	return *p
}

func (p *Plan) stop(object, format string, args ...any) {
	p.Stops = append(p.Stops, Finding{object, fmt.Sprintf(format, args...)})
}

func (p *Plan) note(object, format string, args ...any) {
	p.Notes = append(p.Notes, Finding{object, fmt.Sprintf(format, args...)})
}

func name(kind string, o metav1.Object) string {
	if o.GetNamespace() == "" {
		return kind + " " + o.GetName()
	}
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// Minor versions of KubeVirt 1 that can be taken over.
const firstMinor, lastMinor = 7, 9

func (p *Plan) checkInstallation(c *Cluster) {
	kv := name("KubeVirt", c.KubeVirt)
	p.Version = c.KubeVirt.Status.ObservedKubeVirtVersion
	parsed, err := version.ParseSemantic(p.Version)
	if err != nil || parsed.Major() != 1 || parsed.Minor() < firstMinor || parsed.Minor() > lastMinor {
		p.stop(kv, "status.observedKubeVirtVersion is %q: only KubeVirt 1.%d to 1.%d can be taken over. Upgrade KubeVirt first.", p.Version, firstMinor, lastMinor)
	}
	if !conditions.IsTrue(c.KubeVirt.Status.Conditions, v1.KubeVirtConditionAvailable) {
		p.stop(kv, "It is not Available: repair KubeVirt first, so that all guests have an agent.")
	}
	if c.KubeVirt.DeletionTimestamp != nil {
		p.stop(kv, "It is being deleted, which deletes all VirtualMachines. Restore it from a backup first.")
	}
	p.checkOwners(kv, c.KubeVirt)
	if c.Operator == nil {
		p.stop("Deployment virt-operator", "There is none: who reconciles KubeVirt here is not known.")
		return
	}
	p.checkOwners(name("Deployment", c.Operator), c.Operator)
}

func (p *Plan) checkOwners(object string, o metav1.Object) {
	for _, owner := range ownersOf(o) {
		p.stop(object, "%s owns it and would restore it. Make it leave KubeVirt alone first.", owner)
	}
}

// ownersOf returns the tools that have installed an object and keep it as it is.
func ownersOf(o metav1.Object) []string {
	var owners []string
	for _, owner := range o.GetOwnerReferences() {
		owners = append(owners, fmt.Sprintf("%s %s", owner.Kind, owner.Name))
	}
	for prefix, tool := range map[string]string{
		"olm.": "The Operator Lifecycle Manager", "argocd.argoproj.io/": "Argo CD", "kustomize.toolkit.fluxcd.io/": "Flux",
		"helm.toolkit.fluxcd.io/": "Flux", "meta.helm.sh/": "Helm",
	} {
		for _, keys := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
			for key := range keys {
				if strings.HasPrefix(key, prefix) {
					owners = append(owners, tool)
				}
			}
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners)
}

func (p *Plan) checkCluster(c *Cluster) {
	if c.OpenShift {
		p.stop("the cluster", "It is OpenShift, for which Vireo has no SecurityContextConstraints.")
	}
	parsed, err := version.ParseGeneric(c.ServerVersion)
	switch {
	case err != nil || parsed.LessThan(version.MustParseGeneric("1.33")):
		p.stop("the cluster", "The API server is %s, and has no image volumes, which launcher Pods need: Kubernetes 1.35 has them, "+
			"and 1.33 with the feature gate ImageVolume.", c.ServerVersion)
	case parsed.LessThan(version.MustParseGeneric("1.35")):
		p.note("the cluster", "The API server is %s: its feature gate ImageVolume and that of all kubelets must be enabled.",
			c.ServerVersion)
	}
	for _, crd := range slices.Sorted(maps.Keys(c.StoredVersions)) {
		served, known := c.Served[crd]
		for _, stored := range c.StoredVersions[crd] {
			if known && !slices.Contains(served, stored) {
				p.stop("CustomResourceDefinition "+crd, "status.storedVersions has %s, which Vireo does not serve. Write all its objects "+
					"in %s, and remove %s from status.storedVersions.", stored, served[len(served)-1], stored)
			}
		}
	}
}

func (p *Plan) noteConfiguration(c *Cluster) {
	kv := name("KubeVirt", c.KubeVirt)
	for _, found := range specsupport.UnimplementedInKubeVirt(field.NewPath("spec"), &c.KubeVirt.Spec) {
		p.note(kv, "%s", found)
	}
	if customize := c.KubeVirt.Spec.CustomizeComponents; len(customize.Patches) > 0 {
		p.note(kv, "spec.customizeComponents.patches apply to Vireo's components, whose Pods are others.")
	}
	if methods := c.KubeVirt.Spec.WorkloadUpdateStrategy.WorkloadUpdateMethods; len(methods) > 0 {
		p.note(kv, "spec.workloadUpdateStrategy: guests of KubeVirt's launchers cannot be migrated to Vireo's. Only Evict updates "+
			"them, which restarts them.")
	}
	if c.Presets > 0 {
		p.note("VirtualMachineInstancePresets", "Vireo does not apply the %d presets to new VMIs.", c.Presets)
	}
	if c.Exports > 0 {
		p.note("VirtualMachineExports", "The exporters of %d exports are started again.", c.Exports)
	}
	for _, policy := range c.NetworkPolicies {
		p.note("NetworkPolicy "+policy, "It may deny what Vireo's components need. Replace it by config/network-policy.")
	}
}
