// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rights

import (
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/vireo-project/vireo/internal/certificate"
)

// The markers from which config/rbac/role.yaml is generated list the Secrets and signers of all CAs.
func TestControllerRoleContainsEveryAuthority(t *testing.T) {
	shipped, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	var secrets, signers []string
	for _, role := range certificate.Roles() {
		signers = append(signers, role.Signer())
	}
	for _, role := range certificate.Authorities() {
		secrets = append(secrets, role.AuthoritySecret())
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
	// named returns the names for which a verb is allowed, without the Secret of virt-controller's own certificate.
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
		{"secrets", []string{"update", "delete"}, secrets},
		{"signers", []string{"approve", "sign"}, signers},
	} {
		for _, verb := range want.verbs {
			if got := named(want.resource, verb); !slices.Equal(got, want.names) {
				t.Errorf("%s %s: the role names %q and package certificate has %q: change the marker and run make manifests", verb,
					want.resource, got, want.names)
			}
		}
	}
}

// suites.yaml contains every right of the roles, and no others.
func TestEveryRightHasASuite(t *testing.T) {
	const root = "../.."
	shipped, err := Read(root)
	if err != nil {
		t.Fatal(err)
	}
	table, err := readTable()
	if err != nil {
		t.Fatal(err)
	}
	existing := map[string]bool{}
	for _, r := range shipped.rights() {
		if table[r.role].Suite == "" {
			t.Errorf("%s has no suite in suites.yaml", r.role)
		}
		existing[r.role] = true
		existing[r.role+" "+r.String()] = true
	}
	for role, uses := range table {
		if !existing[role] {
			t.Errorf("suites.yaml has %s, which is not in config/rbac", role)
		}
		expectSuite(t, root, uses.Suite)
		seen := map[string]bool{}
		for _, e := range uses.Elsewhere {
			if (e.Suite == "") == (e.Reason == "") {
				t.Errorf("%s: %q has neither a suite nor a reason, or both", role, e.Rights)
			}
			if e.Suite != "" {
				expectSuite(t, root, e.Suite)
			}
			for _, r := range e.all() {
				if !existing[role+" "+r] {
					t.Errorf("suites.yaml has %q of %s, which is not in config/rbac", r, role)
				}
				if seen[r] {
					t.Errorf("suites.yaml has %q of %s twice", r, role)
				}
				seen[r] = true
			}
		}
	}
}

// expectSuite checks that a test of a suite contains the suite's name, which it passes to Check.
func expectSuite(t *testing.T, root, suite string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, suite, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), strconv.Quote(suite)) {
			return
		}
	}
	t.Errorf("no test of %s calls Check with its name", suite)
}

func TestAuditLogIsComparedWithRights(t *testing.T) {
	event := func(user, verb, group, resource, sub, namespace, name string, code int32, decision string) string {
		e := auditv1.Event{
			User: authenticationv1.UserInfo{Username: "admin"}, ImpersonatedUser: &authenticationv1.UserInfo{Username: user},
			Verb: verb,
			ObjectRef: &auditv1.ObjectReference{APIGroup: group, Resource: resource, Subresource: sub, Namespace: namespace,
				Name: name},
			ResponseStatus: &metav1.Status{Code: code}, Annotations: map[string]string{decisionAnnotation: decision},
		}
		if decision == "allow" && code == http.StatusForbidden {
			e.ResponseStatus.Message = `pods "a" is forbidden: User "system:..." cannot create resource "pods"`
		}
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(text) + "\n"
	}
	agent := Handler.User()
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte(
		event(agent, "patch", "kubevirt.io", "virtualmachineinstances", "status", "team", "a", 200, "allow")+
			event(agent, "list", "kubevirt.io", "kubevirts", "", Namespace, "", 200, "allow")+
			event(agent, "patch", "", "configmaps", "", Namespace, "b", 201, "allow")+
			event(agent, "get", "", "pods", "", Namespace, "c", 200, "allow")+
			event(agent, "get", "", "secrets", "", Namespace, "d", 403, "forbid")+
			event(agent, "patch", "", "pods", "", "team", "e", 403, "allow")+
			event("somebody", "get", "", "secrets", "", "team", "f", 403, "forbid"),
	), 0o600); err != nil {
		t.Fatal(err)
	}
	seen, err := (&Audit{log}).read()
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{
		agent + ` may not get secrets in namespace "` + Namespace + `"`, agent + ` may not patch pods in namespace "team"`,
	}; !slices.Equal(seen.denied, want) {
		t.Errorf("denied: got %q, want %q", seen.denied, want)
	}
	for _, c := range []struct {
		right
		used bool
	}{
		{right{user: agent, verb: "patch", resource: "virtualmachineinstances.kubevirt.io/status", allNamespaces: true}, true},
		{right{user: agent, verb: "patch", resource: "virtualmachineinstances.kubevirt.io", allNamespaces: true}, false},
		{right{user: agent, verb: "get", resource: "virtualmachineinstances.kubevirt.io/status", allNamespaces: true}, false},
		{right{user: API.User(), verb: "patch", resource: "virtualmachineinstances.kubevirt.io/status", allNamespaces: true}, false},
		{right{user: agent, verb: "list", resource: "kubevirts.kubevirt.io"}, true},
		// A right for all namespaces that is used only in the install namespace should be in a Role.
		{right{user: agent, verb: "get", resource: "pods", allNamespaces: true}, false},
		{right{user: agent, verb: "get", resource: "pods", name: "c"}, true},
		{right{user: agent, verb: "get", resource: "pods", name: "other"}, false},
		// A patch that created an object needed both rights.
		{right{user: agent, verb: "create", resource: "configmaps"}, true},
		{right{user: agent, verb: "patch", resource: "configmaps"}, true},
	} {
		if seen.uses(c.right) != c.used {
			t.Errorf("%s: used is %t", c.right, !c.used)
		}
	}
}

func TestPartial(t *testing.T) {
	for name, tc := range map[string]struct {
		arguments []string
		want      bool
	}{
		"all":            {},
		"all, with more": {arguments: []string{"-test.v"}},
		"run":            {arguments: []string{"-test.run=TestX"}, want: true},
		"focus":          {arguments: []string{"-ginkgo.focus=a spec"}, want: true},
	} {
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		flags.Bool("test.v", false, "")
		flags.String("test.run", "", "")
		flags.Func("ginkgo.focus", "", func(string) error { return nil }) // like Ginkgo's flags, without a readable value
		if err := flags.Parse(tc.arguments); err != nil {
			t.Fatal(err)
		}
		if got := partial(flags); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
