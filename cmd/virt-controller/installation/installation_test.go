// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package installation

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/apiserver"
)

const (
	root      = "../../.."
	namespace = "kubevirt"
	account   = "vireo-installation"
)

// TestCommands runs the commands with the Role of the chart against an API server that has no CRD at first.
func TestCommands(t *testing.T) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: it names the directory with etcd and kube-apiserver")
	}
	g := NewWithT(t)
	environment := apiserver.New()
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	scheme := runtime.NewScheme()
	g.Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	g.Expect(v1.AddToScheme(scheme)).To(Succeed())
	admin, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	allow(t.Context(), g, admin)
	limited := rest.CopyConfig(config)
	limited.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account}
	run := func(arguments ...string) <-chan error {
		done := make(chan error, 1)
		go func() { done <- Run(t.Context(), limited, arguments) }()
		return done
	}

	// Without the CRD there is nothing to delete.
	g.Eventually(run(Delete, namespace), time.Minute).Should(Receive(BeNil()))

	// The object is created as soon as its CRD is established.
	file := filepath.Join(t.TempDir(), "kubevirt.yaml")
	write(g, file, `{"imageTag": "v1", "productName": "p"}`)
	applied := run(Apply, file)
	g.Consistently(applied, 3*time.Second).ShouldNot(Receive())
	_, err = envtest.InstallCRDs(config,
		apiserver.Install(filepath.Join(root, "config", "crd", "bases", "kubevirt.io_kubevirts.yaml")))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(applied, time.Minute).Should(Receive(BeNil()))

	// Another application removes what it no longer sets, and keeps what others set.
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubevirt"}}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"monitorNamespace":"m"},"metadata":{"finalizers":["example.com/f"]}}`))
	g.Expect(admin.Patch(t.Context(), kv, patch)).To(Succeed())
	write(g, file, `{"imageTag": "v2"}`)
	g.Eventually(run(Apply, file), time.Minute).Should(Receive(BeNil()))
	g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(kv), kv)).To(Succeed())
	g.Expect(kv.Spec).To(Equal(v1.KubeVirtSpec{ImageTag: "v2", MonitorNamespace: "m"}))

	// KubeVirt's operator would delete the CRDs of an object that is deleted.
	waiting := kv.DeepCopy()
	waiting.Status.Conditions = []v1.KubeVirtCondition{{Type: v1.KubeVirtConditionWaiting, Status: corev1.ConditionTrue}}
	g.Expect(admin.Status().Patch(t.Context(), waiting, client.MergeFrom(kv))).To(Succeed())
	g.Eventually(run(Delete, namespace), time.Minute).Should(Receive(MatchError(ContainSubstring("is not deleted"))))
	before := waiting.DeepCopy()
	waiting.Status.Conditions = nil
	g.Expect(admin.Status().Patch(t.Context(), waiting, client.MergeFrom(before))).To(Succeed())

	// A deletion waits for the end of the object.
	deleted := run(Delete, namespace)
	g.Eventually(func(g Gomega) {
		g.Expect(admin.Get(t.Context(), client.ObjectKeyFromObject(kv), kv)).To(Succeed())
		g.Expect(kv.DeletionTimestamp).NotTo(BeNil())
	}, time.Minute).Should(Succeed())
	g.Consistently(deleted, time.Second).ShouldNot(Receive())
	g.Expect(admin.Patch(t.Context(), kv, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	g.Eventually(deleted, time.Minute).Should(Receive(BeNil()))
	g.Expect(apierrors.IsNotFound(admin.Get(t.Context(), client.ObjectKeyFromObject(kv), kv))).To(BeTrue())
}

func TestWrongCommandsFail(t *testing.T) {
	for _, arguments := range [][]string{{"apply-kubevirt"}, {"delete-kubevirt"}, {"other", "x"}} {
		if !IsCommand(arguments) {
			t.Errorf("%v is not a command", arguments)
		}
		if err := Run(t.Context(), &rest.Config{}, arguments); err == nil || !strings.Contains(err.Error(), Apply) {
			t.Errorf("%v: %v", arguments, err)
		}
	}
	if IsCommand([]string{"--port=1"}) || IsCommand(nil) {
		t.Error("flags are a command")
	}
}

// write writes a KubeVirt object with a spec to a file.
func write(g *WithT, file, spec string) {
	g.Expect(os.WriteFile(file, []byte(`{"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt", "namespace": "`+
		namespace+`"}, "spec": `+spec+`}`), 0o600)).To(Succeed())
}

// allow creates the chart's Role and gives it to the account.
func allow(ctx context.Context, g *WithT, admin client.Client) {
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	template, err := os.ReadFile(filepath.Join(root, "charts", "vireo", "templates", "kubevirt.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	role := &rbacv1.Role{}
	for document := range strings.SplitSeq(strings.ReplaceAll(string(template), "{{ .Release.Namespace }}", namespace),
		"---\n") {
		if strings.Contains(document, "\nkind: Role\n") {
			g.Expect(yaml.UnmarshalStrict([]byte(document), role)).To(Succeed())
		}
	}
	g.Expect(role.Name).To(Equal(account))
	g.Expect(admin.Create(ctx, role)).To(Succeed())
	g.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	})).To(Succeed())
}
