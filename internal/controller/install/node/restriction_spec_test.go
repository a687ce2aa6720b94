// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	. "github.com/vireo-project/vireo/test/controllersuite"
)

// policyTimeout is how long an API server on a busy computer may take to enforce a new policy.
const policyTimeout = 30 * time.Second

// The policies of config/admission, which the API server evaluates for requests of an agent's account.
var _ = Describe("Node restriction", Ordered, func() {
	var namespace string

	// handlerOf returns a client of an account with the name of the agents'. RBAC permits everything: only the policies
	// decide.
	handlerOf := func(installation, node string) client.Client {
		GinkgoHelper()
		config := rest.CopyConfig(AdminConfig)
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
	// agentOf returns a client with the identity of a node's agent.
	agentOf := func(node string) client.Client { GinkgoHelper(); return handlerOf("kubevirt", node) }
	onNode := func(name, host string) *v1.VirtualMachineInstance {
		GinkgoHelper()
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		vmi.Status.Phase, vmi.Status.NodeName = v1.Running, host
		ExpectCreated(vmi)
		return ExpectExists(vmi)
	}
	leaseOf := func(host string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentapi.ObjectName(host)}}
	}
	write := func(c client.Client, vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstance)) error {
		before := vmi.DeepCopy()
		after := vmi.DeepCopy()
		change(after)
		return c.Status().Patch(ctx, after, client.MergeFrom(before))
	}
	machine := func(vmi *v1.VirtualMachineInstance) { vmi.Status.Machine = &v1.Machine{Type: string(vmi.UID)} }

	BeforeAll(func() {
		namespace = NewNamespace()
		ExpectCreated(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "restriction-test"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "restriction-test"}},
		})
		raw, err := os.ReadFile(InRepository("config", "admission", "node-restriction.yaml"))
		Expect(err).NotTo(HaveOccurred())
		for _, document := range strings.Split(string(raw), "\n---\n") {
			u := &unstructured.Unstructured{}
			Expect(yaml.Unmarshal([]byte(document), u)).To(Succeed())
			Expect(K8sClient.Create(ctx, u)).To(Succeed())
			DeferCleanup(func() { Expect(client.IgnoreNotFound(K8sClient.Delete(ctx, u))).To(Succeed()) })
		}
		// The API server enforces new policies with a delay.
		probe := onNode("probe", "n1")
		Eventually(func() error { return write(agentOf("n2"), probe, machine) }, policyTimeout).
			Should(MatchError(apierrors.IsForbidden, "is forbidden"))
		Eventually(func() error {
			l := leaseOf("n1")
			return agentOf("n2").Create(ctx, l, client.DryRunAll)
		}, policyTimeout).Should(MatchError(apierrors.IsForbidden, "is forbidden"))
	})

	It("permits an agent to write the status of VMIs on its node", func() {
		Expect(write(agentOf("n1"), onNode("mine", "n1"), machine)).To(Succeed())
	})

	It("denies an agent phases that do not exist, and any number of them", func() {
		vmi := onNode("phases", "n1")
		stamp := func(phases ...v1.VirtualMachineInstancePhase) func(*v1.VirtualMachineInstance) {
			return func(v *v1.VirtualMachineInstance) {
				for _, phase := range phases {
					v.Status.PhaseTransitionTimestamps = append(v.Status.PhaseTransitionTimestamps,
						v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: metav1.Now()})
				}
			}
		}
		Expect(write(agentOf("n1"), vmi, stamp(v1.Scheduled, v1.Running))).To(Succeed())
		denied := MatchError(ContainSubstring("may only record the times of the phases"))
		Expect(write(agentOf("n1"), vmi, stamp("Invented"))).To(denied)
		Expect(write(agentOf("n1"), vmi, stamp(slices.Repeat([]v1.VirtualMachineInstancePhase{v1.Running}, 17)...))).
			To(denied)
	})

	It("denies an agent the status fields of virt-controller", func() {
		vmi := onNode("controller-fields", "n1")
		Expect(write(K8sClient, vmi, func(v *v1.VirtualMachineInstance) {
			v.Status.ActivePods, v.Status.VSOCKCID = map[types.UID]string{"p": "n1"}, ptr.To[uint32](3)
			v.Status.EvacuationNodeName = "n1"
		})).To(Succeed())
		ExpectExists(vmi)
		for what, change := range map[string]func(*v1.VirtualMachineInstance){
			"another Pod":           func(v *v1.VirtualMachineInstance) { v.Status.ActivePods["q"] = "n2" },
			"no Pods":               func(v *v1.VirtualMachineInstance) { v.Status.ActivePods = nil },
			"another VSOCK CID":     func(v *v1.VirtualMachineInstance) { v.Status.VSOCKCID = ptr.To[uint32](4) },
			"no VSOCK CID":          func(v *v1.VirtualMachineInstance) { v.Status.VSOCKCID = nil },
			"a canceled evacuation": func(v *v1.VirtualMachineInstance) { v.Status.EvacuationNodeName = "" },
			"a reason":              func(v *v1.VirtualMachineInstance) { v.Status.Reason = "so" },
			"migrated volumes": func(v *v1.VirtualMachineInstance) {
				v.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data"}}
			},
		} {
			Expect(write(agentOf("n1"), vmi, change)).To(
				MatchError(ContainSubstring("may only write what it observes of its guests: reason, activePods,")), what)
		}
		Expect(write(agentOf("n1"), vmi, machine)).To(Succeed())
	})

	It("permits an agent to write the record of a snapshot's freeze, within limits, and denies it the intent", func() {
		vmi := onNode("freezes", "n1")
		Expect(write(K8sClient, vmi, func(v *v1.VirtualMachineInstance) {
			v.Status.SnapshotFreeze = &v1.SnapshotFreeze{ID: "a", Deadline: metav1.Now()}
		})).To(Succeed())
		ExpectExists(vmi)
		record := func(change func(*v1.SnapshotFreezeRecord)) func(*v1.VirtualMachineInstance) {
			return func(v *v1.VirtualMachineInstance) {
				v.Status.SnapshotFreezeRecord = &v1.SnapshotFreezeRecord{ID: "a", Deadline: metav1.Now(),
					Stage: v1.SnapshotFreezeFrozen}
				change(v.Status.SnapshotFreezeRecord)
			}
		}
		for what, change := range map[string]func(*v1.SnapshotFreezeRecord){
			"a long ID":        func(r *v1.SnapshotFreezeRecord) { r.ID = strings.Repeat("a", 64) },
			"no ID":            func(r *v1.SnapshotFreezeRecord) { r.ID = "" },
			"an unknown stage": func(r *v1.SnapshotFreezeRecord) { r.Stage = "Molten" },
			"a long problem":   func(r *v1.SnapshotFreezeRecord) { r.Problem = strings.Repeat("a", 1025) },
		} {
			Expect(write(agentOf("n1"), vmi, record(change))).To(MatchError(apierrors.IsInvalid, "is invalid"), what)
		}
		asItIs := func(*v1.SnapshotFreezeRecord) {}
		Expect(write(agentOf("n2"), vmi, record(asItIs))).To(MatchError(ContainSubstring("of another node")))
		Expect(write(agentOf("n1"), vmi, record(asItIs))).To(Succeed())
		for what, change := range map[string]func(*v1.VirtualMachineInstance){
			"a release": func(v *v1.VirtualMachineInstance) { v.Status.SnapshotFreeze.End = v1.SnapshotFreezeRelease },
			"more time": func(v *v1.VirtualMachineInstance) {
				v.Status.SnapshotFreeze.Deadline = metav1.NewTime(time.Now().Add(time.Hour))
			},
			"another snapshot": func(v *v1.VirtualMachineInstance) { v.Status.SnapshotFreeze.ID = "b" },
			"no intent":        func(v *v1.VirtualMachineInstance) { v.Status.SnapshotFreeze = nil },
		} {
			Expect(write(agentOf("n1"), ExpectExists(vmi), change)).
				To(MatchError(ContainSubstring("may only write what it observes of its guests")), what)
		}
	})

	It("permits an agent to write the record of a backup, and denies it the intent", func() {
		vmi := onNode("backs-up", "n1")
		Expect(write(K8sClient, vmi, func(v *v1.VirtualMachineInstance) {
			v.Status.DiskBackup = &v1.DiskBackup{ID: "a", UtilityVolume: "target", Directory: "vm/a", Volumes: []string{"root"}}
		})).To(Succeed())
		ExpectExists(vmi)
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) {
			v.Status.DiskBackupRecord = &v1.DiskBackupRecord{ID: "a", Stage: "Perhaps"}
		})).To(MatchError(apierrors.IsInvalid, "is invalid"))
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) {
			v.Status.DiskBackupRecord = &v1.DiskBackupRecord{ID: "a", Stage: v1.DiskBackupRunning}
		})).To(Succeed())
		for what, change := range map[string]func(*v1.VirtualMachineInstance){
			"a cancel":          func(v *v1.VirtualMachineInstance) { v.Status.DiskBackup.Canceled = true },
			"another directory": func(v *v1.VirtualMachineInstance) { v.Status.DiskBackup.Directory = "." },
			"no intent":         func(v *v1.VirtualMachineInstance) { v.Status.DiskBackup = nil },
		} {
			Expect(write(agentOf("n1"), ExpectExists(vmi), change)).
				To(MatchError(ContainSubstring("may only write what it observes of its guests")), what)
		}
	})

	It("denies an agent VMIs of other nodes", func() {
		vmi := onNode("theirs", "n2")
		Expect(write(agentOf("n1"), vmi, machine)).To(MatchError(ContainSubstring("of another node")))
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n1" })).
			To(MatchError(ContainSubstring("of another node")), "it must not transfer a VMI to its own node")
		Expect(write(agentOf("n1"), onNode("unplaced", ""), func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n1" })).
			To(MatchError(apierrors.IsForbidden, "is forbidden"))
	})

	It("denies an agent to transfer a VMI, to change its metadata and to delete it", func() {
		vmi := onNode("kept", "n1")
		Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n2" })).
			To(MatchError(ContainSubstring("move a VirtualMachineInstance")))
		changed := vmi.DeepCopy()
		changed.Labels = map[string]string{"a": "b"}
		Expect(agentOf("n1").Patch(ctx, changed, client.MergeFrom(vmi))).
			To(MatchError(ContainSubstring("only write the status")))
		Expect(agentOf("n1").Delete(ctx, vmi)).To(MatchError(ContainSubstring("only write the status")))
	})

	Describe("of the nodes of a migration", func() {
		moving := func(name string) *v1.VirtualMachineInstance {
			GinkgoHelper()
			vmi := onNode(name, "n1")
			Expect(write(K8sClient, vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.EvacuationNodeName = "n1"
				v.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "n1",
					TargetNode: "n2", TargetPod: "p"}
			})).To(Succeed())
			ExpectExists(vmi)
			return vmi
		}
		transferOwnership := func(v *v1.VirtualMachineInstance) {
			now := metav1.Now()
			v.Status.NodeName, v.Status.EvacuationNodeName = "n2", ""
			v.Status.MigrationState.Completed, v.Status.MigrationState.EndTimestamp = true, &now
		}

		It("permits the target's agent to write the target's fields of migrationState, and nothing else", func() {
			vmi := moving("target-fields")
			Expect(write(agentOf("n2"), vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.MigrationState.TargetNodeAddress = "10.0.0.2"
				v.Status.MigrationState.TargetDirectMigrationNodePorts = map[string]int{"49152": 49152}
				v.Status.MigrationState.TargetNodeDomainDetected = true
			})).To(Succeed())
			for what, change := range map[string]func(*v1.VirtualMachineInstance){
				"another field":           machine,
				"a failure":               func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Failed = true },
				"an end":                  func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Completed = true },
				"another source":          func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.SourceNode = "n3" },
				"another Pod":             func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.TargetPod = "q" },
				"no migration":            func(v *v1.VirtualMachineInstance) { v.Status.MigrationState = nil },
				"a third node":            func(v *v1.VirtualMachineInstance) { v.Status.NodeName = "n3" },
				"another evacuation node": func(v *v1.VirtualMachineInstance) { v.Status.EvacuationNodeName = "n3" },
				"no evacuation node":      func(v *v1.VirtualMachineInstance) { v.Status.EvacuationNodeName = "" },
				"the owner, and more":     func(v *v1.VirtualMachineInstance) { transferOwnership(v); machine(v) },
			} {
				Expect(write(agentOf("n2"), vmi, change)).To(MatchError(apierrors.IsForbidden, "is forbidden"), what)
			}
			Expect(write(agentOf("n3"), vmi, transferOwnership)).
				To(MatchError(apierrors.IsForbidden, "is forbidden"), "agent of a third node")
		})

		It("permits the source's agent to write the progress of the migration, and not its identity", func() {
			vmi := moving("progress")
			now := metav1.Now()
			Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.MigrationState.StartTimestamp, v.Status.MigrationState.Mode = &now, v1.MigrationPreCopy
			})).To(Succeed())
			ExpectExists(vmi)
			for what, change := range map[string]func(*v1.VirtualMachineInstance){
				"another target": func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.TargetNode = "n3" },
				"another Pod":    func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.SourcePod = "q" },
				"without TLS": func(v *v1.VirtualMachineInstance) {
					v.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{DisableTLS: ptr.To(true)}
				},
				"an abort":     func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.AbortRequested = true },
				"no migration": func(v *v1.VirtualMachineInstance) { v.Status.MigrationState = nil },
			} {
				Expect(write(agentOf("n1"), vmi, change)).To(
					MatchError(ContainSubstring("may only write the progress of a migration")), what)
			}
			Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) {
				m := v.Status.MigrationState
				m.Failed, m.Completed, m.EndTimestamp, m.FailureReason, m.AbortStatus = true, true, &now, "so",
					v1.MigrationAbortSucceeded
				// And the other fields of its own VMI.
				machine(v)
			})).To(Succeed())
			Expect(write(agentOf("n1"), onNode("not-migrating", "n1"), func(v *v1.VirtualMachineInstance) {
				v.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "n1",
					TargetNode: "n2", TargetPod: "p"}
			})).To(MatchError(ContainSubstring("may only write the progress of a migration")), "a migration that does not exist")
		})

		It("permits the target's agent to complete migrationState after the transfer of ownership", func() {
			vmi := moving("completed")
			Expect(vmistatus.TransferOwnership(ctx, agentOf("n1"), vmi)).To(Succeed())
			Expect(write(agentOf("n2"), ExpectExists(vmi), func(v *v1.VirtualMachineInstance) {
				vmistatus.Complete(v.Status.MigrationState, metav1.Now())
			})).To(Succeed())
			Expect(write(agentOf("n2"), ExpectExists(vmi),
				func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.SourceNode = "n3" })).
				To(MatchError(ContainSubstring("may only write the progress of a migration")))
		})

		It("permits either agent to transfer ownership to the target", func() {
			Expect(write(agentOf("n2"), moving("claimed"), transferOwnership)).To(Succeed())
			given := moving("transferred")
			Expect(write(agentOf("n1"), given, transferOwnership)).To(Succeed())
			Expect(write(agentOf("n1"), given, machine)).To(MatchError(ContainSubstring("of another node")))
			Expect(write(agentOf("n2"), given, machine)).To(Succeed())
		})

		// withVolumes returns a migrating VMI with a migrated volume and a shared one.
		withVolumes := func(name string) *v1.VirtualMachineInstance {
			GinkgoHelper()
			claim := func(name string) *v1.PersistentVolumeClaimInfo {
				return &v1.PersistentVolumeClaimInfo{ClaimName: name,
					Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1024Mi")}}
			}
			vmi := moving(name)
			Expect(write(K8sClient, vmi, func(v *v1.VirtualMachineInstance) {
				v.Status.MigrationState.SourcePersistentStatePVCName = "state-here"
				v.Status.MigrationState.TargetPersistentStatePVCName = "state-there"
				v.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data", SourcePVCInfo: claim("old"),
					DestinationPVCInfo: claim("new")}}
				v.Status.VolumeStatus = []v1.VolumeStatus{
					{Name: "data", Target: "vdb", Size: gibibyte, PersistentVolumeClaimInfo: claim("old")},
					{Name: "stays", Target: "vdc", Size: gibibyte, PersistentVolumeClaimInfo: claim("shared")},
					{Name: "state-here", PersistentVolumeClaimInfo: claim("state-here")},
				}
				v.Status.Conditions = []v1.VirtualMachineInstanceCondition{
					{Type: v1.VirtualMachineInstanceReady, Status: corev1.ConditionTrue},
					{Type: v1.VirtualMachineInstanceVolumesChange, Status: corev1.ConditionTrue},
				}
			})).To(Succeed())
			return ExpectExists(vmi)
		}

		It("permits either agent to record the migrated volumes when it transfers ownership, and nothing else of the guest",
			func() {
				for node, transfer := range map[string]func(*v1.VirtualMachineInstance) error{
					"n1": func(vmi *v1.VirtualMachineInstance) error {
						return vmistatus.TransferOwnership(ctx, agentOf("n1"), vmi)
					},
					"n2": func(vmi *v1.VirtualMachineInstance) error {
						return vmistatus.TakeOwnership(ctx, agentOf("n2"), vmi, metav1.Now())
					},
				} {
					vmi := withVolumes("volumes-to-" + node)
					Expect(transfer(vmi)).To(Succeed())
					ExpectExists(vmi)
					Expect(vmi.Status.MigratedVolumes).To(BeEmpty())
					Expect(vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName).To(Equal("new"))
					Expect(vmi.Status.VolumeStatus[2].Name).To(Equal("state-there"))
					Expect(vmi.Status.Conditions).To(HaveLen(1))
				}
				vmi := withVolumes("invalid-changes")
				for what, change := range map[string]func(*v1.VirtualMachineInstance){
					"no migrated volumes before the transfer": func(v *v1.VirtualMachineInstance) { v.Status.MigratedVolumes = nil },
					"no VolumesChange before the transfer":    func(v *v1.VirtualMachineInstance) { v.Status.Conditions = v.Status.Conditions[:1] },
					"no Ready condition": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.Conditions = v.Status.Conditions[1:]
					},
					"another Ready status": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.Conditions[0].Status = corev1.ConditionFalse
					},
					"a third claim": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = "third"
					},
					"a claim for another volume": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.VolumeStatus[1].PersistentVolumeClaimInfo = v.Status.MigratedVolumes[0].DestinationPVCInfo
					},
					"a third claim for its state": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.VolumeStatus[2].Name, v.Status.VolumeStatus[2].PersistentVolumeClaimInfo.ClaimName = "third", "third"
					},
					"another size": func(v *v1.VirtualMachineInstance) { transferOwnership(v); v.Status.VolumeStatus[0].Size = 1 },
					"a volume less": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.VolumeStatus = v.Status.VolumeStatus[:1]
					},
					"no volume at all": func(v *v1.VirtualMachineInstance) { transferOwnership(v); v.Status.VolumeStatus = nil },
					"other moves": func(v *v1.VirtualMachineInstance) {
						transferOwnership(v)
						v.Status.MigratedVolumes[0].SourcePVCInfo.ClaimName = "third"
					},
				} {
					Expect(write(agentOf("n2"), vmi, change)).To(MatchError(apierrors.IsForbidden, "is forbidden"), what)
				}
			})

		It("denies both agents a transfer of ownership after the migration has failed", func() {
			vmi := moving("failed")
			Expect(write(agentOf("n1"), vmi, func(v *v1.VirtualMachineInstance) { v.Status.MigrationState.Failed = true })).
				To(Succeed())
			ExpectExists(vmi)
			Expect(write(agentOf("n2"), vmi, transferOwnership)).To(MatchError(ContainSubstring("of another node")))
			Expect(write(agentOf("n1"), vmi, transferOwnership)).
				To(MatchError(ContainSubstring("move a VirtualMachineInstance")))
		})
	})

	It("denies everything to a token that is not bound to a node", func() {
		Expect(write(agentOf(""), onNode("any", "n1"), machine)).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		Expect(agentOf("").Create(ctx, leaseOf(""))).NotTo(Succeed())
	})

	It("permits an agent to write its own Lease and report only", func() {
		Expect(agentOf("n1").Create(ctx, leaseOf("n1"))).To(Succeed())
		Expect(agentOf("n2").Delete(ctx, leaseOf("n1"))).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentapi.ObjectName("n1")}}
		Expect(agentOf("n2").Create(ctx, cm.DeepCopy())).To(MatchError(apierrors.IsForbidden, "is forbidden"))
		Expect(agentOf("n1").Create(ctx, cm)).To(Succeed())
	})

	It("does not apply to other clients", func() {
		Expect(write(K8sClient, onNode("of-the-manager", "n2"), machine)).To(Succeed())
		Expect(K8sClient.Create(ctx, leaseOf("n3"))).To(Succeed())
	})

	It("does not apply to a service account of the agents' name in another namespace", func() {
		tenant := handlerOf(namespace, "n1")
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-a-tenant"}}
		Expect(tenant.Create(ctx, vmi)).To(Succeed())
		Expect(tenant.Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-a-tenant"}})).To(Succeed())
	})
})

const gibibyte = 1 << 30
