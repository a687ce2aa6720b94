// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rights

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/vireo-project/vireo/internal/certificate"
)

// The markers behind config/rbac/role.yaml are text, so that a new authority does not reach them by itself.
func TestRoleOfTheControllerNamesEveryAuthority(t *testing.T) {
	shipped, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	var secrets, signers []string
	for _, role := range certificate.Roles() {
		secrets, signers = append(secrets, role.AuthoritySecret()), append(signers, role.Signer())
	}
	var rules []rbacv1.PolicyRule
	for i := range shipped.ClusterRoles {
		if shipped.ClusterRoles[i].Name == "virt-controller" {
			rules = append(rules, shipped.ClusterRoles[i].Rules...)
		}
	}
	for i := range shipped.Roles {
		if shipped.Roles[i].Name == "virt-controller" {
			rules = append(rules, shipped.Roles[i].Rules...)
		}
	}
	// named are the names for which a verb is allowed, except those of the certificate of virt-controller itself.
	named := func(resource, verb string) []string {
		var names []string
		for _, rule := range rules {
			if slices.Contains(rule.Resources, resource) && slices.Contains(rule.Verbs, verb) {
				names = append(names, rule.ResourceNames...)
			}
		}
		names = slices.DeleteFunc(names, func(name string) bool { return name == "kubevirt-controller-certs" })
		slices.Sort(names)
		return names
	}
	slices.Sort(secrets)
	slices.Sort(signers)
	for _, want := range []struct {
		resource string
		verbs    []string
		names    []string
	}{
		{"secrets", []string{"get", "update", "delete"}, secrets},
		{"signers", []string{"approve", "sign"}, signers},
	} {
		for _, verb := range want.verbs {
			if got := named(want.resource, verb); !slices.Equal(got, want.names) {
				t.Errorf("%s %s: the role names %q and certificate.Roles() has %q: change the marker and run make manifests", verb, want.resource, got, want.names)
			}
		}
	}
}
