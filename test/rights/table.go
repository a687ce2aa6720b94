// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rights

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	sigsyaml "sigs.k8s.io/yaml"
)

// suites assigns each right of a component to the suite that uses it.
//
//go:embed suites.yaml
var suites []byte

// table is the contents of suites.yaml: keys are the kind and name of a role, or of a binding to a role of Kubernetes.
type table map[string]uses

// uses contains the suites that use the rights of a role.
type uses struct {
	// Suite is the directory of the suite that uses every right not in Elsewhere.
	Suite string `json:"suite"`
	// Elsewhere are the exceptions.
	Elsewhere []elsewhere `json:"elsewhere,omitempty"`
}

// elsewhere are rights that another suite uses, or no suite with an audit log. Several verbs of one object are
// separated by commas.
type elsewhere struct {
	Suite string `json:"suite,omitempty"`
	// Reason is why no suite with an audit log uses the rights. Either Suite or Reason is set.
	Reason string   `json:"reason,omitempty"`
	Rights []string `json:"rights"`
}

func readTable() (table, error) {
	t := table{}
	if err := sigsyaml.UnmarshalStrict(suites, &t); err != nil {
		return nil, fmt.Errorf("suites.yaml: %w", err)
	}
	return t, nil
}

// suiteOf returns the suite that uses a right, or "".
func (t table) suiteOf(r right) string {
	for _, e := range t[r.role].Elsewhere {
		if slices.Contains(e.all(), r.String()) {
			return e.Suite
		}
	}
	return t[r.role].Suite
}

// all returns the rights with one verb each.
func (e elsewhere) all() []string {
	var all []string
	for _, entry := range e.Rights {
		verbs, object, _ := strings.Cut(entry, " ")
		for verb := range strings.SplitSeq(verbs, ",") {
			all = append(all, verb+" "+object)
		}
	}
	return all
}

// right is one verb on one resource, or on one object.
type right struct {
	// role is the kind and the name of the role that contains it.
	role string
	user string
	verb string
	// resource is like "pods/status" or "kubevirts.kubevirt.io".
	resource string
	name     string
	// allNamespaces reports whether it is not restricted to the install namespace.
	allNamespaces bool
	// binding is the name of a binding to a role of Kubernetes, whose rules are not known.
	binding string
}

// String returns the right in the format of suites.yaml.
func (r right) String() string {
	switch {
	case r.binding != "":
		return "all"
	case r.name != "":
		return r.verb + " " + r.resource + " " + r.name
	}
	return r.verb + " " + r.resource
}

// rights returns all rights of the components.
func (s *Shipped) rights() []right {
	rules := map[string][]rbacv1.PolicyRule{}
	for i := range s.ClusterRoles {
		rules["ClusterRole/"+s.ClusterRoles[i].Name] = s.ClusterRoles[i].Rules
	}
	for i := range s.Roles {
		rules["Role/"+s.Roles[i].Name] = s.Roles[i].Rules
	}
	all := make([]right, 0, len(s.ClusterRoleBindings)+len(s.RoleBindings))
	for i := range s.ClusterRoleBindings {
		b := &s.ClusterRoleBindings[i]
		all = append(all, rightsOf("ClusterRole", b.Name, b.Subjects[0], b.RoleRef.Name,
			rules["ClusterRole/"+b.RoleRef.Name])...)
	}
	for i := range s.RoleBindings {
		b := &s.RoleBindings[i]
		all = append(all, rightsOf("Role", b.Name, b.Subjects[0], b.RoleRef.Name, rules["Role/"+b.RoleRef.Name])...)
	}
	return all
}

func rightsOf(kind, binding string, subject rbacv1.Subject, role string, rules []rbacv1.PolicyRule) []right {
	user := serviceaccount.MakeUsername(subject.Namespace, subject.Name)
	if rules == nil {
		return []right{{role: kind + "Binding/" + binding, user: user, binding: binding}}
	}
	var all []right
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						all = append(all, right{
							role: kind + "/" + role, user: user, verb: verb, resource: qualified(group, resource), name: name,
							allNamespaces: kind == "ClusterRole",
						})
					}
				}
			}
		}
	}
	return all
}

// qualified returns a resource with its group, such as "pods/status" or
// "certificatesigningrequests.certificates.k8s.io/approval".
func qualified(group, resource string) string {
	kind, sub, _ := strings.Cut(resource, "/")
	if group != "" {
		kind += "." + group
	}
	if sub != "" {
		kind += "/" + sub
	}
	return kind
}
