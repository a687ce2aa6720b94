// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rights lets tests run a component with the roles of config/rbac instead of those of a cluster administrator,
// so that a missing permission fails a test. A right is one verb on one resource.
package rights

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Namespace is the install namespace of the manifests in config/.
const Namespace = "kubevirt"

// Account is the ServiceAccount of a component, in Namespace.
type Account string

// The accounts of components.
const (
	Controller Account = "kubevirt-controller"
	Handler    Account = "kubevirt-handler"
	API        Account = "kubevirt-apiserver"

	ExportProxy Account = "kubevirt-exportproxy"
)

// User returns the user name of the account.
func (a Account) User() string { return serviceaccount.MakeUsername(Namespace, string(a)) }

// Impersonate returns a client configuration that impersonates the account, with extra attributes like those of a
// token.
func (a Account) Impersonate(admin *rest.Config, extra map[string][]string) *rest.Config {
	config := rest.CopyConfig(admin)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: a.User(), Groups: append(serviceaccount.MakeGroupNames(Namespace), "system:authenticated"), Extra: extra,
	}
	return config
}

// ImpersonateOn returns a client configuration that impersonates the account with the node of a bound token.
func (a Account) ImpersonateOn(admin *rest.Config, node string) *rest.Config {
	return a.Impersonate(admin, map[string][]string{serviceaccount.NodeNameKey: {node}})
}

// OnNode returns a client configuration with a token that is bound to a Pod of the account on a node, and the Pod,
// which it creates. Unlike with ImpersonateOn, the API server itself sets the attribute with the node. The Pod's
// address is 127.0.0.1.
func (a Account) OnNode(
	ctx context.Context, config *rest.Config, admin client.Client, node string,
) (*rest.Config, *corev1.Pod, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: string(a) + "-" + node, Labels: map[string]string{v1.AppLabel: "virt-handler"},
		},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: string(a),
			Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := admin.Create(ctx, pod); err != nil {
		return nil, nil, err
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if err := admin.Status().Update(ctx, pod); err != nil {
		return nil, nil, err
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: string(a)}}
	if err := admin.SubResource("token").Create(ctx, owner, token); err != nil {
		return nil, nil, err
	}
	bound := rest.AnonymousClientConfig(config)
	bound.BearerToken = token.Status.Token
	return bound, pod, nil
}

// Shipped are the accounts, roles and bindings of config/rbac, except those for users.
type Shipped struct {
	ServiceAccounts     []corev1.ServiceAccount
	ClusterRoles        []rbacv1.ClusterRole
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	Roles               []rbacv1.Role
	RoleBindings        []rbacv1.RoleBinding
}

// Read reads config/rbac. root is the root of the repository.
func Read(root string) (*Shipped, error) {
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", "*.yaml"))
	if err != nil {
		return nil, err
	}
	s := &Shipped{}
	for _, file := range files {
		if base := filepath.Base(file); base == "users.yaml" || base == "kustomization.yaml" {
			continue
		}
		if err := s.read(file); err != nil {
			return nil, err
		}
	}
	if len(s.ClusterRoles) == 0 || len(s.Roles) == 0 {
		return nil, fmt.Errorf("no roles in config/rbac below %s", root)
	}
	return s, nil
}

func (s *Shipped) read(file string) error { return eachDocument(file, s.add) }

// eachDocument calls a function with each document of a manifest, as JSON, until it returns an error.
func eachDocument(file string, do func([]byte) error) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		document := &runtime.RawExtension{}
		switch err := decoder.Decode(document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := do(document.Raw); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
}

func (s *Shipped) add(document []byte) error {
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := sigsyaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "ServiceAccount":
		return decode(document, &s.ServiceAccounts)
	case "ClusterRole":
		return decode(document, &s.ClusterRoles)
	case "ClusterRoleBinding":
		return decode(document, &s.ClusterRoleBindings)
	case "Role":
		return decode(document, &s.Roles)
	case "RoleBinding":
		return decode(document, &s.RoleBindings)
	}
	return nil
}

func decode[T any](document []byte, into *[]T) error {
	var object T
	if err := sigsyaml.UnmarshalStrict(document, &object); err != nil {
		return err
	}
	*into = append(*into, object)
	return nil
}

// Ship creates the install namespace and the objects of config/rbac, and returns when the roles are effective. root is
// the root of the repository.
func Ship(ctx context.Context, root string, admin client.Client) (*Shipped, error) {
	shipped, err := Read(root)
	if err != nil {
		return nil, err
	}
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}); err != nil {
		return nil, err
	}
	return shipped, shipped.Install(ctx, admin)
}

// Install creates the objects and returns when the roles are effective. The namespaces must exist.
func (s *Shipped) Install(ctx context.Context, admin client.Client) error {
	for i := range s.ServiceAccounts {
		if err := admin.Create(ctx, s.ServiceAccounts[i].DeepCopy()); err != nil {
			return err
		}
	}
	for i := range s.ClusterRoles {
		if err := admin.Create(ctx, s.ClusterRoles[i].DeepCopy()); err != nil {
			return err
		}
	}
	for i := range s.ClusterRoleBindings {
		if err := admin.Create(ctx, s.ClusterRoleBindings[i].DeepCopy()); err != nil {
			return err
		}
	}
	for i := range s.RoleBindings {
		// Bindings in other namespaces are to roles of Kubernetes.
		if s.RoleBindings[i].Namespace != Namespace {
			if err := admin.Create(ctx, s.RoleBindings[i].DeepCopy()); err != nil {
				return err
			}
		}
	}
	for _, binding := range s.ClusterRoleBindings {
		at := slices.IndexFunc(s.ClusterRoles, func(r rbacv1.ClusterRole) bool { return r.Name == binding.RoleRef.Name })
		if at < 0 {
			continue // a role of Kubernetes, which exists already
		}
		if err := await(ctx, admin, binding.Subjects[0], "", s.ClusterRoles[at].Rules); err != nil {
			return err
		}
	}
	return s.InstallIn(ctx, admin, Namespace)
}

// InstallIn creates the roles and bindings in another install namespace, for suites with several installations.
func (s *Shipped) InstallIn(ctx context.Context, admin client.Client, namespace string) error {
	for i := range s.Roles {
		role := s.Roles[i].DeepCopy()
		role.Namespace = namespace
		if err := admin.Create(ctx, role); err != nil {
			return err
		}
	}
	for i := range s.RoleBindings {
		binding := s.RoleBindings[i].DeepCopy()
		if binding.Namespace != Namespace {
			continue
		}
		binding.Namespace = namespace
		if err := admin.Create(ctx, binding); err != nil {
			return err
		}
		at := slices.IndexFunc(s.Roles, func(r rbacv1.Role) bool { return r.Name == binding.RoleRef.Name })
		if at < 0 {
			return fmt.Errorf("RoleBinding %s is of Role %s, which config/rbac does not have", binding.Name,
				binding.RoleRef.Name)
		}
		if err := await(ctx, admin, binding.Subjects[0], namespace, s.Roles[at].Rules); err != nil {
			return err
		}
	}
	return nil
}

// CreateFile creates the objects of a manifest.
func CreateFile(ctx context.Context, admin client.Client, file string) error {
	return eachDocument(file, func(document []byte) error {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(document); err != nil {
			return err
		}
		return admin.Create(ctx, object)
	})
}

// RestrictAgents creates the admission policies for node agents and returns when they are effective. The API server
// does not report that, so it sends requests until one is rejected.
func RestrictAgents(ctx context.Context, root string, config *rest.Config, admin client.Client) error {
	if err := CreateFile(ctx, admin, filepath.Join(root, "config", "admission", "node-restriction.yaml")); err != nil {
		return err
	}
	agent, err := client.New(Handler.ImpersonateOn(config, "some-node"), client.Options{Scheme: admin.Scheme()})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, installTimeout, true,
		func(ctx context.Context) (bool, error) {
			foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "virt-handler.other-node"}}
			err := agent.Create(ctx, foreign, client.DryRunAll)
			switch {
			case err == nil:
				return false, nil
			case strings.Contains(err.Error(), "kubevirt-node-restriction-agent"):
				return true, nil
			}
			return false, err
		})
	if err != nil {
		return fmt.Errorf("the policies for node agents are not effective: %w", err)
	}
	return nil
}

// installTimeout is how long new roles and policies may take to be effective. The API server's caches usually need
// milliseconds.
const installTimeout = time.Minute

// await returns when the subject has the last right of a role. It sends SubjectAccessReviews.
func await(
	ctx context.Context, admin client.Client, subject rbacv1.Subject, namespace string, rules []rbacv1.PolicyRule,
) error {
	last := rules[len(rules)-1]
	attributes := &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: last.Verbs[0], Group: last.APIGroups[0], Resource: last.Resources[0],
	}
	if len(last.ResourceNames) > 0 {
		attributes.Name = last.ResourceNames[0]
	}
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, installTimeout, true,
		func(ctx context.Context) (bool, error) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: serviceaccount.MakeUsername(subject.Namespace, subject.Name), ResourceAttributes: attributes,
			}}
			err := admin.Create(ctx, review)
			return review.Status.Allowed, err
		})
	if err != nil {
		return fmt.Errorf("the role of %s is not effective: %w", subject.Name, err)
	}
	return nil
}
