// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// subresourcesAPI is the path of virt-api in the API server.
const subresourcesAPI = "/apis/subresources.kubevirt.io/v1"

// rounds is how often a VM is started and stopped with each run strategy.
var rounds = numberOr("VIREO_E2E_ROUNDS", 2)

func numberOr(variable string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return value
	}
	return otherwise
}

// verbPath returns the path of a subresource of an object.
func verbPath(namespace, resource, name, verb string) string {
	return strings.Join([]string{subresourcesAPI, "namespaces", namespace, resource, name, verb}, "/")
}

var _ = Describe("A VM that is started and stopped with virtctl", kvmLinuxLong(), func() {
	// forceStop stops a VM without waiting for its guest, which may not have booted yet.
	forceStop := func(ctx context.Context, namespace, name string) {
		GinkgoHelper()
		expectVirtctl(ctx, "stop", "-n", namespace, name, "--force", "--grace-period=0")
		expectGone(ctx, &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		expectStopped(ctx, namespace, name)
	}
	expectStrategy := func(ctx context.Context, namespace, name string, strategy v1.VirtualMachineRunStrategy) {
		GinkgoHelper()
		vm := &v1.VirtualMachine{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
		Expect(vm.Spec.RunStrategy).To(HaveValue(Equal(strategy)))
	}

	It("changes from Halted to Always and back each time, and restarts", func(ctx context.Context) {
		namespace, name := newNamespace(ctx), "halted"
		create(ctx, makeVM(namespace, name, withRunStrategy(v1.RunStrategyHalted)))
		expectStopped(ctx, namespace, name)
		for range rounds {
			expectVirtctl(ctx, "start", "-n", namespace, name)
			expectReady(ctx, namespace, name)
			expectStrategy(ctx, namespace, name, v1.RunStrategyAlways)
			Expect(expectRefused(ctx, "start", "-n", namespace, name)).To(ContainSubstring("VM is already running"))
			forceStop(ctx, namespace, name)
			expectStrategy(ctx, namespace, name, v1.RunStrategyHalted)
		}
		Expect(expectRefused(ctx, "restart", "-n", namespace, name)).To(ContainSubstring("Halted"))

		By("restarting it")
		expectVirtctl(ctx, "start", "-n", namespace, name)
		before := expectReady(ctx, namespace, name)
		expectVirtctl(ctx, "restart", "-n", namespace, name, "--force", "--grace-period=0")
		expectNewInstance(ctx, before)
		expectReady(ctx, namespace, name)
	}, specTimeout(6*time.Minute+time.Duration(rounds)*time.Minute))

	It("keeps run strategy Manual", extended(1), func(ctx context.Context) {
		namespace, name := newNamespace(ctx), "manual"
		create(ctx, makeVM(namespace, name, withRunStrategy(v1.RunStrategyManual)))
		for range rounds {
			expectStopped(ctx, namespace, name)
			Expect(expectRefused(ctx, "stop", "-n", namespace, name)).To(ContainSubstring("VM is not running"))
			expectVirtctl(ctx, "start", "-n", namespace, name)
			expectReady(ctx, namespace, name)
			forceStop(ctx, namespace, name)
			expectStrategy(ctx, namespace, name, v1.RunStrategyManual)
		}
	}, specTimeout(4*time.Minute+time.Duration(rounds)*time.Minute))

	It("keeps run strategy RerunOnFailure, which starts it at first", extended(2), func(ctx context.Context) {
		namespace, name := newNamespace(ctx), "rerun"
		create(ctx, makeVM(namespace, name, withRunStrategy(v1.RunStrategyRerunOnFailure)))
		for i := range rounds {
			if i > 0 {
				expectVirtctl(ctx, "start", "-n", namespace, name)
			}
			expectReady(ctx, namespace, name)
			forceStop(ctx, namespace, name)
			expectStrategy(ctx, namespace, name, v1.RunStrategyRerunOnFailure)
		}
	}, specTimeout(4*time.Minute+time.Duration(rounds)*time.Minute))

	It("starts each time its run strategy becomes Once, and becomes Halted when it is stopped", extended(3),
		func(ctx context.Context) {
			namespace, name := newNamespace(ctx), "once"
			create(ctx, makeVM(namespace, name, withRunStrategy(v1.RunStrategyHalted)))
			for range rounds {
				setRunStrategy(ctx, namespace, name, v1.RunStrategyOnce)
				expectReady(ctx, namespace, name)
				forceStop(ctx, namespace, name)
				expectStrategy(ctx, namespace, name, v1.RunStrategyHalted)
			}
		}, specTimeout(4*time.Minute+time.Duration(rounds)*time.Minute))

	It("backs off while its starts fail, and starts when they succeed", extended(1), func(ctx context.Context) {
		needLocalNodes()
		namespace, name := newNamespace(ctx), "looping"
		stop := killLaunchers(ctx, namespace)
		create(ctx, makeVM(namespace, name))
		read := func() *v1.VirtualMachine {
			vm := &v1.VirtualMachine{}
			Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
			return vm
		}
		Eventually(read).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(100 * time.Millisecond).Should(And(
			HaveField("Status.PrintableStatus", v1.VirtualMachineStatusCrashLoopBackOff),
			HaveField("Status.StartFailure", HaveValue(And(
				HaveField("ConsecutiveFailCount", BeNumerically(">=", 2)),
				HaveField("RetryAfterTimestamp", Not(BeNil())))))))
		stop()
		expectReady(ctx, namespace, name)
		Eventually(read).WithContext(ctx).WithTimeout(shortTimeout).Should(HaveField("Status.StartFailure", BeNil()))
	}, specTimeout(9*time.Minute))
})

// killLaunchers kills each virt-launcher of a namespace as soon as it runs, until the returned function is called.
func killLaunchers(ctx context.Context, namespace string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer GinkgoRecover()
		defer close(done)
		for ctx.Err() == nil {
			pods := &corev1.PodList{}
			if k8s.List(ctx, pods, client.InNamespace(namespace)) != nil {
				continue
			}
			for i := range pods.Items {
				for _, launcher := range podProcesses(&pods.Items[i], "virt-launcher") {
					_ = syscall.Kill(launcher.PID, syscall.SIGKILL) // it may have ended by itself
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// restartVirtAPI replaces all Pods of virt-api, as an upgrade does. The old ones may still wait for streams that are
// open.
func restartVirtAPI(ctx context.Context) {
	GinkgoHelper()
	list := &corev1.PodList{}
	Expect(k8s.List(ctx, list, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: "virt-api"})).
		To(Succeed())
	Expect(list.Items).NotTo(BeEmpty())
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "virt-api"}}
	patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":%q}}}}}`,
		time.Now().Format(time.RFC3339))
	Expect(k8s.Patch(ctx, deployment, client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(deployment), deployment)).To(Succeed())
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		g.Expect(deployment.Status.AvailableReplicas).To(Equal(*deployment.Spec.Replicas))
		for i := range list.Items {
			pod := &corev1.Pod{}
			err := k8s.Get(ctx, client.ObjectKeyFromObject(&list.Items[i]), pod)
			g.Expect(apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil).To(BeTrue())
		}
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}

// kubeVirtsRights returns the namespaced subresources of KubeVirt 1.9, as "verb resource".
func kubeVirtsRights() []string {
	all := []string{"update expand-vm-spec"}
	for what, names := range map[string]string{
		"update virtualmachines/": "start stop restart migrate addvolume removevolume memorydump removememorydump evacuate/cancel",
		"get virtualmachines/":    "expand-spec portforward objectgraph",
		"update virtualmachineinstances/": "pause unpause freeze unfreeze reset softreboot addvolume removevolume evacuate/cancel backup " +
			"redefine-checkpoint sev/setupsession sev/injectlaunchsecret",
		"get virtualmachineinstances/": "console vnc vnc/screenshot usbredir vsock portforward guestosinfo userlist filesystemlist " +
			"objectgraph sev/fetchcertchain sev/querylaunchmeasurement",
	} {
		for name := range strings.FieldsSeq(names) {
			all = append(all, what+name)
		}
	}
	return all
}

// right is a verb on a namespaced resource of the subresources' API.
type right struct {
	resource, verb string // as RBAC calls them
	path           string
}

// rbacResources returns the resources of the RBAC rules for it. The API server checks only the first part of a
// subresource such as vnc/screenshot, and virt-api checks the whole subresource.
func (r right) rbacResources() []string {
	if parts := strings.Split(r.resource, "/"); len(parts) > 2 {
		return []string{parts[0] + "/" + parts[1], r.resource}
	}
	return []string{r.resource}
}

// as returns a client of a user that has no rights except those of the namespace's roles.
func as(user string) rest.Interface {
	GinkgoHelper()
	config := rest.CopyConfig(restConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	set, err := kubernetes.NewForConfig(config)
	Expect(err).NotTo(HaveOccurred())
	return set.CoreV1().RESTClient()
}

// request sends the request for an object that does not exist, and returns the error.
func (r right) request(ctx context.Context, api rest.Interface) error {
	request := api.Get()
	if r.verb == "update" {
		request = api.Put().SetHeader("Content-Type", "application/json").Body([]byte("{}"))
	}
	return request.AbsPath(r.path).Do(ctx).Error()
}

// rights returns all namespaced resources and verbs of discovery.
func rights(ctx context.Context, namespace string) []right {
	GinkgoHelper()
	list := &metav1.APIResourceList{}
	raw, err := clientset.CoreV1().RESTClient().Get().AbsPath(subresourcesAPI).DoRaw(ctx)
	Expect(err).NotTo(HaveOccurred())
	Expect(json.Unmarshal(raw, list)).To(Succeed())
	var all []right
	for _, r := range list.APIResources {
		if !r.Namespaced {
			continue
		}
		path := strings.Join([]string{subresourcesAPI, "namespaces", namespace, r.Name}, "/")
		if resource, verb, isVerb := strings.Cut(r.Name, "/"); isVerb {
			path = verbPath(namespace, resource, "ghost", verb)
			if verb == "portforward" {
				path += "/80"
			}
		}
		for _, verb := range r.Verbs {
			all = append(all, right{resource: r.Name, verb: verb, path: path})
		}
	}
	return all
}

// grant gives a user rights in a namespace and waits until the API server applies them.
func grant(ctx context.Context, namespace, user string, rights ...right) {
	GinkgoHelper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}}
	for _, r := range rights {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{
			APIGroups: []string{"subresources.kubevirt.io"}, Resources: r.rbacResources(), Verbs: []string{r.verb},
		})
	}
	create(ctx, role, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
	Eventually(allowed).WithArguments(ctx, namespace, user, rights[len(rights)-1]).
		WithTimeout(shortTimeout).WithPolling(50 * time.Millisecond).Should(BeTrue())
}

// allowed reports whether a user has a right, according to the API server.
func allowed(ctx context.Context, namespace, user string, r right) bool {
	GinkgoHelper()
	resource, subresource, _ := strings.Cut(r.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: r.verb, Group: "subresources.kubevirt.io", Resource: resource, Subresource: subresource,
		},
	}}
	Expect(k8s.Create(ctx, review)).To(Succeed())
	return review.Status.Allowed
}

var _ = Describe("The subresources of VMs", func() {
	It("need one right each, which no other right includes", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		all := rights(ctx, namespace)
		var found []string
		for _, r := range all {
			found = append(found, r.verb+" "+r.resource)
		}
		Expect(found).To(ConsistOf(kubeVirtsRights()))
		for i, r := range all {
			what := r.verb + " " + r.resource
			only, but := fmt.Sprintf("only-%d", i), fmt.Sprintf("but-%d", i)
			var others []right
			for _, other := range all {
				if other.verb != r.verb || !slices.Contains(other.rbacResources(), r.resource) {
					others = append(others, other)
				}
			}
			grant(ctx, namespace, only, r)
			grant(ctx, namespace, but, others...)
			Expect(apierrors.IsForbidden(r.request(ctx, as("nobody")))).To(BeTrue(), "a user without rights may %s", what)
			Expect(apierrors.IsForbidden(r.request(ctx, as(but)))).To(BeTrue(), "a user with all other rights may %s", what)
			err := r.request(ctx, as(only))
			Expect(apierrors.IsForbidden(err)).To(BeFalse(), "a user with the right to %s may not: %v", what, err)
		}
	}, specTimeout(5*time.Minute))

	It("are served to kubectl and virtctl", func(ctx context.Context) {
		Expect(kubectl(ctx, "", "get", "--raw", subresourcesAPI)).To(ContainSubstring(`"virtualmachineinstances/console"`))
		Expect(expectVirtctl(ctx, "version")).To(MatchRegexp(`(?s)Client Version.*Server Version`))
		err := clientset.CoreV1().RESTClient().Get().AbsPath(subresourcesAPI, "healthz").Do(ctx).Error()
		Expect(err).NotTo(HaveOccurred())

		namespace := newNamespace(ctx)
		create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "operators"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "kubevirt.io:edit"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "operator"}},
		})
		// kubectl auth can-i is not used, because it rejects API groups that contain only subresources.
		console := right{resource: "virtualmachineinstances/console", verb: "get"}
		Eventually(allowed).WithArguments(ctx, namespace, "operator", console).WithTimeout(shortTimeout).Should(BeTrue())
		Expect(allowed(ctx, namespace, "somebody-else", console)).To(BeFalse())
	}, specTimeout(2*time.Minute))
})
