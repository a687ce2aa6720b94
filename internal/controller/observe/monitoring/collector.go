// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package monitoring contains virt-controller's metrics of VMs, VMIs and migrations. Names, labels and meanings are
// KubeVirt's (docs/metrics.md). All but the durations are computed from the cache at each scrape, so deleted objects
// have no series, and a restart changes nothing.
package monitoring

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

// scrapeTimeout is how long reading the cache may take.
const scrapeTimeout = 5 * time.Second

// Collector computes the metrics from the objects of a cache.
type Collector struct {
	// Reader is the cache.
	Reader client.Reader
	// Elected is closed when this process becomes the leader. Only the leader has these metrics, because sums over all
	// processes would otherwise count each object several times.
	Elected <-chan struct{}
	// Config returns the cluster's configuration.
	Config func() clusterconfig.Config
	// Labels selects the labels of VMs, within a limit.
	Labels *metrics.LabelBudget
	// Namespace is the install namespace.
	Namespace string
	// WebhookSecret is the name of the Secret with the authority of the webhooks.
	WebhookSecret string
	// Clock replaces the time in tests.
	Clock clock.PassiveClock

	resources resourceCache
}

// Describe implements prometheus.Collector. The labels of kubevirt_vm_labels are not known in advance, so nothing is
// described.
func (*Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	select {
	case <-c.Elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	o, err := c.read(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(vmInfo, err)
		return
	}
	collectMigrations(o.migrations.Items, to)
	collectMigrationTimes(o.vmis.Items, o.migrations.Items, to)
	for i := range o.vmis.Items {
		collectVMI(&o, &o.vmis.Items[i], to)
	}
	for i := range o.vms.Items {
		vm := &o.vms.Items[i]
		collectVM(&o, vm, to)
		c.resources.collect(&o, vm, to)
	}
	c.resources.forget(o.vms.Items)
	collectLabels(c.Labels, o.vms.Items, to)
	collectSnapshots(o.snapshots.Items, to)
	now := kit.Now(c.Clock)
	collectAuthorities(&o, c.WebhookSecret, now, to)
	collectSilence(&o, now, to)
}

// objects contains the objects of one scrape. They belong to the cache and must not be changed.
type objects struct {
	config     clusterconfig.Config
	vms        v1.VirtualMachineList
	vmis       v1.VirtualMachineInstanceList
	migrations v1.VirtualMachineInstanceMigrationList
	snapshots  snapshotv1beta1.VirtualMachineSnapshotList
	// kubevirts are the KubeVirt objects of the install namespace, secrets the Secrets with authorities, and nodes the
	// metadata of Nodes.
	kubevirts v1.KubeVirtList
	secrets   corev1.SecretList
	nodes     metav1.PartialObjectMetadataList
	// pods are the names of the launcher Pods that run, by their VMI and node.
	pods map[placement]string
	// claims are the PersistentVolumeClaims of all namespaces.
	claims map[client.ObjectKey]*corev1.PersistentVolumeClaim
	// types are the instance types and preferences.
	types typeIndex
}

// placement is a VMI, by its UID, on a node.
type placement struct{ vmi, node string }

func (c *Collector) read(ctx context.Context) (objects, error) {
	o := objects{config: c.Config(), pods: map[placement]string{},
		claims: map[client.ObjectKey]*corev1.PersistentVolumeClaim{}, types: typeIndex{}, nodes: nodeList()}
	pods, claims := &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}
	types := []client.ObjectList{
		&v1beta1.VirtualMachineInstancetypeList{}, &v1beta1.VirtualMachineClusterInstancetypeList{},
		&v1beta1.VirtualMachinePreferenceList{}, &v1beta1.VirtualMachineClusterPreferenceList{},
	}
	for _, list := range append(types, &o.vms, &o.vmis, &o.migrations, &o.snapshots, &o.secrets, &o.nodes, pods, claims) {
		if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return o, fmt.Errorf("list %T: %w", list, err)
		}
	}
	if err := c.Reader.List(ctx, &o.kubevirts, client.InNamespace(c.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return o, fmt.Errorf("list %T: %w", &o.kubevirts, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if owner := ownerOf(pod); owner != "" && pod.Status.Phase == corev1.PodRunning {
			o.pods[placement{owner, pod.Spec.NodeName}] = pod.Name
		}
	}
	for i := range claims.Items {
		o.claims[client.ObjectKeyFromObject(&claims.Items[i])] = &claims.Items[i]
	}
	o.types.add(types)
	return o, nil
}

// Process returns the metrics of a virt-controller, which also does what KubeVirt's virt-operator does.
func Process(ready, leading, emulation func() bool) []prometheus.Collector {
	return []prometheus.Collector{
		metrics.NewStatus("virt_controller_ready_status", "1 if this virt-controller can become the leader.", ready),
		metrics.NewStatus("virt_controller_leading_status", "1 if this virt-controller is the leader.", leading),
		metrics.NewStatus("virt_operator_ready_status", "The same as virt_controller_ready_status.", ready),
		metrics.NewStatus("virt_operator_leading_status", "The same as virt_controller_leading_status.", leading),
		metrics.NewStatus("configuration_emulation_enabled", "1 if guests run without KVM.", emulation),
	}
}

// vendorLabel is the label of an instance type or preference with its vendor. As in KubeVirt, metrics contain only the
// names of objects of known vendors, which are the same in all clusters, and not the names of users' own objects.
const (
	vendorLabel = "instancetype.kubevirt.io/vendor"
	otherType   = "<other>"
)

var vendors = map[string]bool{"kubevirt.io": true, "redhat.com": true}

// typeKey identifies an instance type or preference. The namespace of a cluster-wide one is empty.
type typeKey struct{ kind, namespace, name string }

// typeIndex contains the instance types and preferences of the cluster.
type typeIndex map[typeKey]client.Object

// add adds the objects of lists.
func (t typeIndex) add(lists []client.ObjectList) {
	for _, list := range lists {
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			object, ok := item.(client.Object)
			if !ok {
				return nil
			}
			t[typeKey{kindOf(object), object.GetNamespace(), object.GetName()}] = object
			return nil
		})
	}
}

// kindOf returns the kind of an instance type or preference. Objects of a typed list have no kind of their own.
func kindOf(object client.Object) string {
	preference, namespaced := reference.PreferenceSpec(object) != nil, object.GetNamespace() != ""
	class := reference.Instancetypes
	if preference {
		class = reference.Preferences
	}
	if namespaced {
		return class.Namespaced.Name
	}
	return class.Cluster.Name
}

// find returns the object that a matcher of a VM refers to, or nil.
func (t typeIndex) find(class *reference.Class, vm *v1.VirtualMachine) client.Object {
	matcher := class.MatcherOf(&vm.Spec)
	if matcher == nil {
		return nil
	}
	kind, err := class.KindOf(matcher.Kind)
	if err != nil {
		return nil
	}
	key := typeKey{kind: kind.Name, name: matcher.Name}
	if kind.Namespaced {
		key.namespace = vm.Namespace
	}
	return t[key]
}

// ofVM returns the name of a VM's instance type or preference for a label.
func (t typeIndex) ofVM(class *reference.Class, vm *v1.VirtualMachine) string {
	if class.MatcherOf(&vm.Spec) == nil {
		return ""
	}
	return publicName(t.find(class, vm))
}

// ofVMI returns the name of what was applied to a VMI, for a label.
func (t typeIndex) ofVMI(class *reference.Class, vmi *v1.VirtualMachineInstance) string {
	if name, ok := vmi.Annotations[class.NamespacedAnnotation]; ok {
		return publicName(t[typeKey{class.Namespaced.Name, vmi.Namespace, name}])
	}
	if name, ok := vmi.Annotations[class.ClusterAnnotation]; ok {
		return publicName(t[typeKey{kind: class.Cluster.Name, name: name}])
	}
	return ""
}

func publicName(object client.Object) string {
	if object == nil || !vendors[object.GetLabels()[vendorLabel]] {
		return otherType
	}
	return object.GetName()
}
