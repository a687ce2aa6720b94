// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func scope(observed string, change func(*Scope)) *Scope {
	s := &Scope{
		Namespace: "kubevirt",
		KubeVirt: &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt", UID: "1",
			Generation: 7}},
		DeploymentID: "new",
		Rollout:      manifests.Rollout{Done: true, Message: "ready"},
		Agents:       &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{NumberReady: 1}},
		API:          &appsv1.Deployment{Status: appsv1.DeploymentStatus{ReadyReplicas: 1}},
	}
	s.Config.Images = clusterconfig.Images{Handler: "example.org/v/virt-handler:v2"}
	s.KubeVirt.Status.ObservedDeploymentID = observed
	if change != nil {
		change(s)
	}
	return s
}

func deleting(u Uninstall) func(*Scope) {
	return func(s *Scope) {
		s.KubeVirt.DeletionTimestamp = &metav1.Time{Time: now}
		s.Uninstall = u
	}
}

// summary is like "A=True P=False D=False AllComponentsReady".
func summary(kv *v1.KubeVirt) string {
	var parts []string
	var reason string
	for _, c := range kv.Status.Conditions {
		switch c.Type {
		case v1.KubeVirtConditionAvailable, v1.KubeVirtConditionProgressing, v1.KubeVirtConditionDegraded:
			parts = append(parts, string(c.Type)[:1]+"="+string(c.Status))
			reason = c.Reason
		case v1.KubeVirtConditionSynchronized, v1.KubeVirtConditionCreated, v1.KubeVirtConditionReconciling,
			v1.KubeVirtConditionStalled:
			parts = append(parts, string(c.Type)+"="+string(c.Status))
		}
	}
	if generation := *kv.Status.ObservedGeneration; generation > 0 {
		parts = append(parts, fmt.Sprintf("g%d", generation))
	}
	return string(kv.Status.Phase) + " " + strings.Join(parts, " ") + " " + reason
}

func TestConditionMatrix(t *testing.T) {
	waiting := manifests.Rollout{Message: "virt-handler is ready on 1 of 2 nodes"}
	failed := errors.New("no")
	cases := []struct {
		name, observed string
		change         func(*Scope)
		want           string
	}{
		{"deploying", "", func(s *Scope) { s.Rollout = waiting },
			"Deploying A=False P=True D=False Created=True Reconciling=True DeploymentInProgress"},
		{"deployed", "", nil, "Deployed A=True P=False D=False Created=True g7 AllComponentsReady"},
		{"updating", "old", func(s *Scope) { s.Rollout = waiting },
			"Deployed A=True P=True D=True Reconciling=True UpdateInProgress"},
		{"update stops", "old", func(s *Scope) { s.Rollout, s.Crash = waiting, "Pod x" },
			"Deployed A=True P=False D=True Stalled=True Synchronized=False DeploymentFailed"},
		{"first installation stops", "", func(s *Scope) { s.Rollout, s.Crash = waiting, "Pod x" },
			"Deploying A=False P=False D=True Stalled=True Synchronized=False DeploymentFailed"},
		{"an agent crashes without an update", "new", func(s *Scope) { s.Rollout, s.Crash = waiting, "Pod x" },
			"Deployed A=True P=True D=False Created=True Reconciling=True DeploymentInProgress"},
		{"node joins", "new", func(s *Scope) { s.Rollout = waiting },
			"Deployed A=True P=True D=False Created=True Reconciling=True DeploymentInProgress"},
		{"no agent left", "new", func(s *Scope) { s.Rollout = waiting; s.Agents.Status.NumberReady = 0 },
			"Deployed A=False P=True D=False Created=True Reconciling=True DeploymentInProgress"},
		{"first installation fails", "", func(s *Scope) { s.InstallErr = failed },
			"Deploying A=False P=False D=True Stalled=True Synchronized=False DeploymentFailed"},
		{"update fails", "old", func(s *Scope) { s.InstallErr = failed },
			"Deployed A=True P=False D=True Stalled=True Synchronized=False DeploymentFailed"},
		{"invalid configuration", "new", func(s *Scope) { s.ConfigErr = failed },
			"Deployed A=True P=False D=True Created=True Synchronized=False g7 InvalidConfiguration"},
		{"second object", "", func(s *Scope) { s.Conflict = "other" },
			" A=False P=False D=True Synchronized=False g7 ExistingDeployment"},
		{"deleting", "new", deleting(Uninstall{Waiting: "DaemonSet"}),
			"Deleting A=False P=False D=True g7 DeletionInProgress"},
		{"deletion blocked", "new", deleting(Uninstall{Blocked: "1 VMI"}),
			"Deleting A=True P=False D=True g7 DeletionFailed"},
		{"deletion fails", "new", deleting(Uninstall{Err: failed}),
			"Deleting A=False P=False D=True Synchronized=False g7 DeletionFailed"},
		{"deleted", "new", deleting(Uninstall{Done: true}),
			"Deleted A=False P=False D=False g7 DeletionInProgress"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := scope(c.observed, c.change)
			Status(s, now)
			if diff := cmp.Diff(c.want, summary(s.KubeVirt)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			before := s.KubeVirt.DeepCopy()
			Status(s, now.Add(time.Hour))
			if diff := cmp.Diff(before.Status, s.KubeVirt.Status); diff != "" {
				t.Errorf("the same state gives another status later:\n%s", diff)
			}
		})
	}
}

func TestObservedFollowsTargetAfterRollout(t *testing.T) {
	s := scope("old", func(s *Scope) { s.Rollout = manifests.Rollout{} })
	Status(s, now)
	st := s.KubeVirt.Status
	if st.TargetKubeVirtVersion != "v2" || st.TargetDeploymentID != "new" || st.ObservedDeploymentID != "old" ||
		st.ObservedKubeVirtVersion != "" {
		t.Errorf("while rolling out: %+v", st)
	}
	s.Rollout.Done = true
	Status(s, now)
	st = s.KubeVirt.Status
	if st.ObservedDeploymentConfig != st.TargetDeploymentConfig || !strings.Contains(st.ObservedDeploymentConfig, `"kubeVirtVersion":"v2"`) {
		t.Errorf("deployment config %s", st.ObservedDeploymentConfig)
	}
	if strings.Contains(st.ObservedDeploymentConfig, "virtControllerImage") {
		t.Errorf("virt-controller has no Deployment: %s", st.ObservedDeploymentConfig)
	}
	s.ControllerImage = "example.org/v/virt-controller:v2"
	Status(s, now)
	if config := s.KubeVirt.Status.ObservedDeploymentConfig; !strings.Contains(config, `"virtControllerImage":"example.org/v/virt-controller:v2"`) {
		t.Errorf("deployment config %s", config)
	}
	if st.ObservedKubeVirtVersion != "v2" || st.ObservedKubeVirtRegistry != "example.org/v" ||
		st.ObservedDeploymentID != "new" {
		t.Errorf("when done: %+v", st)
	}
}

func TestMessagesAreThoseOfKubeVirt(t *testing.T) {
	waiting := manifests.Rollout{Message: "virt-handler is ready on 1 of 2 nodes"}
	for _, c := range []struct{ observed, want string }{
		{"", "Deploying version v2 with registry example.org/v: virt-handler is ready on 1 of 2 nodes"},
		{"old", "Transitioning from previous version v1 with registry example.org/v to target version v2 using registry example.org/v: virt-handler is ready on 1 of 2 nodes"},
	} {
		s := scope(c.observed, func(s *Scope) {
			s.Rollout = waiting
			s.KubeVirt.Status.ObservedKubeVirtVersion, s.KubeVirt.Status.ObservedKubeVirtRegistry = "v1", "example.org/v"
			s.KubeVirt.Status.Conditions = []v1.KubeVirtCondition{{Type: v1.KubeVirtConditionCreated, Status: "True"}}
		})
		Status(s, now)
		for _, condition := range s.KubeVirt.Status.Conditions {
			if condition.Type == v1.KubeVirtConditionProgressing && condition.Message != c.want {
				t.Errorf("message %q, want %q", condition.Message, c.want)
			}
			if condition.Type == v1.KubeVirtConditionCreated && c.observed != "" {
				t.Error("it is Created while it is updated")
			}
		}
	}
}

// An update by imageTag cannot add what a new version's manifests have and those of the old one lack, as a
// PriorityClass.
func TestFailedUpdateSaysWhatImageTagLeavesOut(t *testing.T) {
	const cause, advice = `no PriorityClass with name "p" was found`, "priority class of version v2 have to be applied before"
	stopped := func(s *Scope) { s.Rollout, s.Crash = manifests.Rollout{Message: "waiting"}, cause }
	refused := func(s *Scope) { s.InstallErr = errors.New(cause) }
	for _, c := range []struct {
		name, imageTag, before string
		fail                   func(*Scope)
		want                   bool
	}{
		{"a Pod is refused", "v2", "v1", stopped, true},
		{"an object is refused", "v2", "v1", refused, true},
		{"new manifests", "", "v1", stopped, false},
		{"other settings of the same version", "v2", "v2", stopped, false},
		{"first installation", "v2", "", refused, false},
	} {
		s := scope("old", c.fail)
		s.KubeVirt.Spec.ImageTag, s.KubeVirt.Status.ObservedKubeVirtVersion = c.imageTag, c.before
		Status(s, now)
		for _, condition := range s.KubeVirt.Status.Conditions {
			if condition.Type != v1.KubeVirtConditionDegraded {
				continue
			}
			if !strings.Contains(condition.Message, cause) || strings.Contains(condition.Message, advice) != c.want {
				t.Errorf("%s: message %q", c.name, condition.Message)
			}
		}
	}
}

func TestTransitionTimeChangesWithStatusOnly(t *testing.T) {
	s := scope("new", nil)
	Status(s, now)
	later := now.Add(time.Hour)
	s.Rollout = manifests.Rollout{Message: "virt-handler is ready on 1 of 2 nodes"}
	Status(s, later)
	for _, c := range s.KubeVirt.Status.Conditions {
		want := now
		if c.Type == v1.KubeVirtConditionProgressing || c.Type == v1.KubeVirtConditionReconciling {
			want = later
		}
		if !c.LastTransitionTime.Time.Equal(want) {
			t.Errorf("%s changed at %s, want %s", c.Type, c.LastTransitionTime, want)
		}
	}
}

func TestIgnoredFieldsAreNamed(t *testing.T) {
	ignored := func(s *Scope) string {
		for _, c := range s.KubeVirt.Status.Conditions {
			if c.Type == v1.KubeVirtConditionFieldsIgnored {
				return string(c.Status) + " " + c.Message
			}
		}
		return ""
	}
	s := scope("new", func(s *Scope) {
		s.KubeVirt.Spec.Configuration.OVMFPath = "/usr/share/edk2"
		s.KubeVirt.Spec.Configuration.SeccompConfiguration = &v1.SeccompConfiguration{
			VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{
				CustomProfile: &v1.CustomProfile{LocalhostProfile: ptr.To(clusterconfig.KubeVirtSeccompProfile)},
			}}
		s.KubeVirt.Spec.Configuration.SupportContainerResources = []v1.SupportContainerResources{
			{Type: v1.VMExport}, {Type: v1.ContainerDisk}, {Type: v1.VirtioFS}, {Type: v1.HotplugAttachment}, {Type: v1.SideCar},
		}
		s.KubeVirt.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk",
			"Sidecar", "Sidecars"}}
	})
	Status(s, now)
	got := ignored(s)
	for _, part := range []string{"True ", "spec.configuration.ovmfPath has no effect: ",
		"feature gate Sidecar has no effect: ", "feature gate Sidecars has no effect: it is not known",
		"customProfile.localhostProfile has no effect: nodes do not get KubeVirt's profile",
		"supportContainerResources[1].type has no effect",
		"supportContainerResources[2].type has no effect", "supportContainerResources[4].type has no effect"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q does not contain %q", got, part)
		}
	}
	for _, works := range []string{"HostDisk", "supportContainerResources[0]", "supportContainerResources[3]"} {
		if strings.Contains(got, works) {
			t.Errorf("%q names %s, which works", got, works)
		}
	}
	s.KubeVirt.Spec = v1.KubeVirtSpec{}
	if Status(s, now); ignored(s) != "" {
		t.Errorf("nothing is ignored, and the condition is %q", ignored(s))
	}
}

func TestConflicts(t *testing.T) {
	object := func(namespace, name string, age time.Duration) v1.KubeVirt {
		return v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u-" + "1",
			CreationTimestamp: metav1.Time{Time: now.Add(-age)}}}
	}
	older, elsewhere := object("kubevirt", "older", time.Hour), object("other", "oldest", 2*time.Hour)
	older.UID, elsewhere.UID = "2", "3"
	s := scope("", nil)
	s.KubeVirt.CreationTimestamp = metav1.Time{Time: now}
	if s.CheckConflict([]v1.KubeVirt{*s.KubeVirt, elsewhere}); s.Conflict != "" {
		t.Errorf("an object elsewhere is a conflict: %s", s.Conflict)
	}
	if s.CheckConflict([]v1.KubeVirt{*s.KubeVirt, older}); !strings.Contains(s.Conflict, "kubevirt/older") {
		t.Errorf("conflict %q", s.Conflict)
	}
	s = scope("", func(s *Scope) { s.KubeVirt.Namespace = "other" })
	if s.CheckConflict([]v1.KubeVirt{*s.KubeVirt}); !strings.Contains(s.Conflict, `"kubevirt"`) {
		t.Errorf("conflict %q", s.Conflict)
	}
}
