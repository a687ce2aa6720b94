// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/nodecapabilities"
)

var _ = Describe("Node", func() {
	var (
		namespace  string
		reconciler *NodeReconciler
		writes     *Writes
		recorder   *events.FakeRecorder
		host       *corev1.Node
		now        time.Time
	)

	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: nodecapabilities.ObjectName(host.Name), Labels: map[string]string{v1.AppLabel: nodecapabilities.LabelValue},
		}
	}
	lease := func() *coordinationv1.Lease { return &coordinationv1.Lease{ObjectMeta: meta()} }
	report := func() *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: meta()} }
	reconcile := func() ctrl.Result {
		GinkgoHelper()
		result, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(host)})
		Expect(err).NotTo(HaveOccurred())
		return result
	}
	publish := func(r nodecapabilities.Report) {
		GinkgoHelper()
		raw, err := json.Marshal(r)
		Expect(err).NotTo(HaveOccurred())
		cm := report()
		cm.Data = map[string]string{nodecapabilities.DataKey: string(raw)}
		if apierrors.IsAlreadyExists(k8sClient.Create(ctx, cm)) {
			Expect(k8sClient.Update(ctx, cm)).To(Succeed())
		}
	}
	beat := func() {
		GinkgoHelper()
		l := lease()
		err := k8sClient.Get(ctx, client.ObjectKeyFromObject(l), l)
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &host.Name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &metav1.MicroTime{Time: now}}
		if err != nil {
			Expect(k8sClient.Create(ctx, l)).To(Succeed())
			return
		}
		Expect(k8sClient.Update(ctx, l)).To(Succeed())
	}

	BeforeEach(func() {
		namespace = NewNamespace()
		now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		host = &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
		Expect(k8sClient.Create(ctx, host)).To(Succeed())
		writes, recorder = NewWrites(), events.NewFakeRecorder(10)
		reconciler = &NodeReconciler{
			Client: writes, Recorder: recorder, Namespace: namespace, Config: clusterconfig.NewStore(),
			Now: func() time.Time { return now },
		}
	})

	It("labels a node from what its agent says", func() {
		publish(nodecapabilities.Report{Devices: true, CPUModels: []string{"EPYC"}, MachineTypes: []string{"q35"}})
		beat()
		Expect(reconcile().RequeueAfter).To(Equal(40 * time.Second))
		ExpectExists(host)
		Expect(host.Labels).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Expect(host.Labels).To(HaveKeyWithValue("cpu-model.node.kubevirt.io/EPYC", "true"))
		Expect(host.Labels).To(HaveKeyWithValue("machine-type.node.kubevirt.io/q35", "true"))
		Expect(host.Annotations).To(HaveKeyWithValue(node.HeartbeatAnnotation, "2026-01-02T03:04:05Z"))
	})

	It("writes nothing without news, and the heartbeat once a minute", func() {
		publish(nodecapabilities.Report{Devices: true})
		beat()
		reconcile()
		Expect(writes.Take()).To(Equal([]string{"patch Node"}))
		reconcile()
		for range 5 {
			now = now.Add(10 * time.Second)
			beat()
			reconcile()
		}
		Expect(writes.Take()).To(BeEmpty())
		now = now.Add(10 * time.Second)
		beat()
		reconcile()
		Expect(writes.Take()).To(Equal([]string{"patch Node"}))
	})

	It("takes a silent node out of scheduling and tells", func() {
		publish(nodecapabilities.Report{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()

		now = now.Add(40 * time.Second)
		Expect(reconcile()).To(BeZero())
		ExpectExists(host)
		Expect(host.Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(host.Labels).To(HaveKey("cpu-model.node.kubevirt.io/EPYC"))
		Expect(host.Annotations).To(HaveKeyWithValue(node.UnresponsiveAnnotation, "2026-01-02T03:04:05Z"), "its VMIs go by that")
		Expect(recorder.Events).To(Receive(ContainSubstring(ReasonNodeUnresponsive)))
		writes.Take()

		reconcile()
		Expect(writes.Take()).To(BeEmpty())
		Expect(recorder.Events).NotTo(Receive(), "the event comes once")
		beat()
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "true"))
		Expect(host.Annotations).NotTo(HaveKey(node.UnresponsiveAnnotation))
	})

	It("takes a goodbye for no fault", func() {
		publish(nodecapabilities.Report{Devices: true})
		beat()
		reconcile()
		l := ExpectExists(lease())
		l.Spec.HolderIdentity = ptr.To("")
		Expect(k8sClient.Update(ctx, l)).To(Succeed())
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(host.Annotations).NotTo(HaveKey(node.UnresponsiveAnnotation))
		Expect(recorder.Events).NotTo(Receive())
	})

	It("tries again when the Node cannot be written, and tells only after", func() {
		publish(nodecapabilities.Report{Devices: true})
		beat()
		reconcile()
		now = now.Add(40 * time.Second)
		writes.Fail = func(string) error { return ErrInjected }
		_, err := reconciler.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(host)})
		Expect(err).To(MatchError(ErrInjected))
		Expect(recorder.Events).NotTo(Receive())
		writes.Fail = nil
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue(node.SchedulableLabel, "false"))
		Expect(recorder.Events).To(Receive(ContainSubstring(ReasonNodeUnresponsive)))
	})

	It("writes what it wrote before when the cache shows an earlier version of the Node", func() {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
		Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(host), object)).To(Succeed())
		publish(nodecapabilities.Report{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()
		labels := maps.Clone(ExpectExists(host).Labels)
		metav1.SetMetaDataLabel(&host.ObjectMeta, "of", "someone-else")
		Expect(k8sClient.Update(ctx, host)).To(Succeed())

		writes.Stale = object
		reconcile()
		Expect(ExpectExists(host).Labels).To(HaveKeyWithValue("of", "someone-else"))
		delete(host.Labels, "of")
		Expect(host.Labels).To(Equal(labels))
	})

	It("does not mind a Node that goes meanwhile", func() {
		publish(nodecapabilities.Report{Devices: true})
		beat()
		writes.Fail = func(string) error { return apierrors.NewNotFound(corev1.Resource("nodes"), host.Name) }
		reconcile()
	})

	It("believes only objects that an agent published", func() {
		beat()
		l := lease()
		Expect(k8sClient.Get(ctx, client.ObjectKeyFromObject(l), l)).To(Succeed())
		l.Labels = nil
		Expect(k8sClient.Update(ctx, l)).To(Succeed())
		reconcile()
		Expect(writes.Take()).To(BeEmpty())
		Expect(nodeOfAgent(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "virt-controller"}})).To(BeEmpty())
		Expect(nodeOfAgent(ctx, lease())[0].Name).To(Equal(host.Name))
	})

	It("cleans up after an agent and after a node", func() {
		publish(nodecapabilities.Report{Devices: true, CPUModels: []string{"EPYC"}})
		beat()
		reconcile()
		Expect(k8sClient.Delete(ctx, lease())).To(Succeed())
		reconcile()
		Expect(ExpectExists(host).Labels).NotTo(HaveKey(node.SchedulableLabel))
		Expect(host.Labels).NotTo(HaveKey("cpu-model.node.kubevirt.io/EPYC"))
		Expect(host.Annotations).NotTo(HaveKey(node.HeartbeatAnnotation))

		beat()
		Expect(k8sClient.Delete(ctx, host)).To(Succeed())
		reconcile()
		ExpectGone(lease())
		ExpectGone(report())
	})
})

// The policies of config/admission, asked as the API server asks them: by requests of an agent's account.
// policyTakenUp is how long an API server on a busy machine may take until it follows a new policy.
const policyTakenUp = 30 * time.Second

var _ = Describe("Node restriction", Ordered, func() {
	var namespace string

	// handlerOf is a client of an account that is called as the agents' is. RBAC is out of the way: only the policies decide.
	handlerOf := func(installation, node string) client.Client {
		GinkgoHelper()
		config := rest.CopyConfig(cfg)
		config.Impersonate = rest.ImpersonationConfig{
			UserName: fmt.Sprintf("system:serviceaccount:%s:kubevirt-handler", installation),
			Groups:   []string{"system:serviceaccounts", "restriction-test"},
		}
		if node != "" {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		c, err := client.New(config, client.Options{Scheme: scheme.Scheme})
		Expect(err).NotTo(HaveOccurred())
		return c
	}
	// agentOf is a client that is the agent of a node.
	agentOf := func(node string) client.Client { GinkgoHelper(); return handlerOf("kubevirt", node) }
	onNode := func(name, host string) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, host
		ExpectCreated(vmi)
		return ExpectExists(vmi)
	}
	leaseOf := func(host string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nodecapabilities.ObjectName(host)}}
	}
	write := func(c client.Client, vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstance)) error {
		before := vmi.DeepCopy()
		after := vmi.DeepCopy()
		change(after)
		return c.Status().Patch(ctx, after, client.MergeFrom(before))
	}
	reason := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Reason = string(vmi.UID) }

	BeforeAll(func() {
		namespace = NewNamespace()
		ExpectCreated(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "restriction-test"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "restriction-test"}},
		})
		raw, err := os.ReadFile(filepath.Join("..", "..", "config", "admission", "node-restriction.yaml"))
		Expect(err).NotTo(HaveOccurred())
		for _, document := range strings.Split(string(raw), "\n---\n") {
			u := &unstructured.Unstructured{}
			Expect(yaml.Unmarshal([]byte(document), u)).To(Succeed())
			Expect(k8sClient.Create(ctx, u)).To(Succeed())
			DeferCleanup(func() { Expect(client.IgnoreNotFound(k8sClient.Delete(ctx, u))).To(Succeed()) })
		}
		// The API server takes policies up after a moment.
		probe := onNode("probe", "n1")
		Eventually(func() error { return write(agentOf("n2"), probe, reason) }, policyTakenUp).Should(MatchError(apierrors.IsForbidden, "is forbidden"))
		Eventually(func() error {
			l := leaseOf("n1")
			return agentOf("n2").Create(ctx, l, client.DryRunAll)
		}, policyTakenUp).Should(MatchError(apierrors.IsForbidden, "is forbidden"))
	})

	It("lets an agent write the status of its VMIs", func() {
		Expect(write(agentOf("n1"), onNode("mine", "n1"), reason)).To(Succeed())
	})

	It("keeps it from VMIs of other nodes", func() {
		vmi := onNode("theirs", "n2")
		Expect(write(agentOf("n1"), vmi, reason)).To(MatchError(ContainSubstring("of another node")))
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n1" })).
			To(MatchError(ContainSubstring("of another node")), "it took the VMI over")
		Expect(write(agentOf("n1"), onNode("unplaced", ""), func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n1" })).
			To(MatchError(apierrors.IsForbidden, "is forbidden"))
	})

	It("keeps it from giving its VMIs away, from their spec and from deleting them", func() {
		vmi := onNode("kept", "n1")
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n2" })).
			To(MatchError(ContainSubstring("move a VirtualMachineInstance")))
		changed := vmi.DeepCopy()
		changed.Labels = map[string]string{"a": "b"}
		Expect(agentOf("n1").Patch(ctx, changed, client.MergeFrom(vmi))).To(MatchError(ContainSubstring("only write the status")))
		Expect(agentOf("n1").Delete(ctx, vmi)).To(MatchError(ContainSubstring("only write the status")))
	})

	Describe("of a migration's nodes", func() {
		moving := func(name string) *v1.VirtualMachineInstance {
			GinkgoHelper()
			vmi := onNode(name, "n1")
			Expect(write(k8sClient, vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.EvacuationNodeName = "n1"
				v.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "n1", TargetNode: "n2", TargetPod: "p"}
			})).To(Succeed())
			ExpectExists(vmi)
			return vmi
		}
		handOver := func(v *v1.VirtualMachineInstance) {
			now := metav1.Now()
			v.Status.NodeName, v.Status.EvacuationNodeName = "n2", ""
			v.Status.MigrationState.Completed, v.Status.MigrationState.EndTimestamp = true, &now
		}

		It("lets the target's say how the guest arrives, and nothing else", func() {
			vmi := moving("arrives")
			Expect(write(agentOf("n2"), vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.MigrationState.TargetNodeAddress = "10.0.0.2"
				v.Status.MigrationState.TargetDirectMigrationNodePorts = map[string]int{"49152": 49152}
				v.Status.MigrationState.TargetNodeDomainDetected = true
			})).To(Succeed())
			for what, change := range map[string]func(*v1.VirtualMachineInstance){
				"another field":       reason,
				"a failure":           func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Failed = true },
				"an end":              func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Completed = true },
				"another source":      func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.SourceNode = "n3" },
				"another Pod":         func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.TargetPod = "q" },
				"no migration":        func(v *v1.VirtualMachineInstance) { v.Status.MigrationState = nil },
				"a third node":        func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n3" },
				"the owner, and more": func(v *v1.VirtualMachineInstance) { handOver(v); reason(v) },
			} {
				Expect(write(agentOf("n2"), vmi, change)).To(MatchError(apierrors.IsForbidden, "is forbidden"), what)
			}
			Expect(write(agentOf("n3"), vmi, handOver)).To(MatchError(apierrors.IsForbidden, "is forbidden"), "a third node's")
		})

		It("lets either say that the target owns the guest", func() {
			Expect(write(agentOf("n2"), moving("claimed"), handOver)).To(Succeed())
			given := moving("given")
			Expect(write(agentOf("n1"), given, handOver)).To(Succeed())
			Expect(write(agentOf("n1"), given, reason)).To(MatchError(ContainSubstring("of another node")))
			Expect(write(agentOf("n2"), given, reason)).To(Succeed())
		})

		It("ends with the migration", func() {
			vmi := moving("failed")
			Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Failed = true })).To(Succeed())
			ExpectExists(vmi)
			Expect(write(agentOf("n2"), vmi, handOver)).To(MatchError(ContainSubstring("of another node")))
			Expect(write(agentOf("n1"), vmi, handOver)).To(MatchError(ContainSubstring("move a VirtualMachineInstance")))
		})
	})

	It("keeps a token without a node from everything", func() {
		Expect(write(agentOf(""), onNode("any", "n1"), reason)).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		Expect(agentOf("").Create(ctx, leaseOf(""))).NotTo(Succeed())
	})

	It("lets an agent write its own Lease and report only", func() {
		Expect(agentOf("n1").Create(ctx, leaseOf("n1"))).To(Succeed())
		Expect(agentOf("n2").Delete(ctx, leaseOf("n1"))).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: nodecapabilities.ObjectName("n1")}}
		Expect(agentOf("n2").Create(ctx, cm.DeepCopy())).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		Expect(agentOf("n1").Create(ctx, cm)).To(Succeed())
	})

	It("does not concern anyone else", func() {
		Expect(write(k8sClient, onNode("of-the-manager", "n2"), reason)).To(Succeed())
		Expect(k8sClient.Create(ctx, leaseOf("n3"))).To(Succeed())
	})

	It("does not concern a tenant's account of the agents' name", func() {
		tenant := handlerOf(namespace, "n1")
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-a-tenant"}}
		Expect(tenant.Create(ctx, vmi)).To(Succeed())
		Expect(tenant.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-a-tenant"}})).To(Succeed())
	})
})
