// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package access tests the ClusterRoles of config/rbac and the policies of config/admission with a real API server.
package access

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/apiserver"
	"github.com/vireo-project/vireo/test/rights"
)

// namespace is the namespace in which users have roles.
const namespace = "team"

// users contains the role of each user in the namespace. The stranger has none.
var users = map[string]string{
	"viewer": "view", "editor": "edit", "admin": "admin", "migrator": "kubevirt.io:migrate", "stranger": "",
}

var (
	scheme  = runtime.NewScheme()
	restCfg *rest.Config
	cluster client.Client // of a cluster administrator
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Println("KUBEBUILDER_ASSETS is not set: run this through make test, which builds the API server")
		return 0
	}
	env := apiserver.New(filepath.Join("..", "..", "config", "crd", "bases"))
	defer func() {
		if err := env.Stop(); err != nil {
			fmt.Println("cannot stop the API server:", err)
		}
	}()
	if err := setup(context.Background(), env); err != nil {
		fmt.Println("cannot set up:", err)
		return 1
	}
	return m.Run()
}

func setup(ctx context.Context, env *envtest.Environment) error {
	cfg, err := env.Start()
	if err != nil {
		return err
	}
	restCfg = cfg
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1.AddToScheme(scheme), poolv1.AddToScheme(scheme),
		snapshotv1beta1.AddToScheme(scheme),
		clonev1beta1.AddToScheme(scheme), exportv1.AddToScheme(scheme), backupv1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	if cluster, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	for _, name := range []string{namespace, "elsewhere", "kubevirt"} {
		if err := cluster.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return err
		}
	}
	if err := create(ctx, filepath.Join("rbac", "users.yaml")); err != nil {
		return err
	}
	if err := aggregate(ctx); err != nil {
		return err
	}
	for user, role := range users {
		if err := bind(ctx, user, role); err != nil {
			return err
		}
	}
	return nil
}

// create creates the objects of a file of config/.
func create(ctx context.Context, file string) error {
	return rights.CreateFile(ctx, cluster, filepath.Join("..", "..", "config", file))
}

// readConfig returns the text of a file of config/.
func readConfig(t *testing.T, file ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(append([]string{"..", "..", "config"}, file...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// aggregate aggregates the roles of Kubernetes in place of kube-controller-manager, which does not run: view is part of
// edit, and edit of admin.
func aggregate(ctx context.Context) error {
	for _, name := range []string{"view", "edit", "admin"} {
		role := &rbacv1.ClusterRole{}
		if err := cluster.Get(ctx, client.ObjectKey{Name: name}, role); err != nil {
			return err
		}
		role.Rules = nil
		for i := range role.AggregationRule.ClusterRoleSelectors {
			selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
			if err != nil {
				return err
			}
			parts := &rbacv1.ClusterRoleList{}
			if err := cluster.List(ctx, parts, client.MatchingLabelsSelector{Selector: selector}); err != nil {
				return err
			}
			for j := range parts.Items {
				role.Rules = append(role.Rules, parts.Items[j].Rules...)
			}
		}
		if err := cluster.Update(ctx, role); err != nil {
			return err
		}
	}
	return nil
}

func bind(ctx context.Context, user, role string) error {
	if role == "" {
		return nil
	}
	return cluster.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user, Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}

// as returns a client that impersonates a user.
func as(t *testing.T, user string, groups ...string) client.Client {
	t.Helper()
	config := rest.CopyConfig(restCfg)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: append(groups, "system:authenticated")}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
