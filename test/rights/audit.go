// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rights

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// auditPolicy has each request written down, without objects. Nobody has a right by a URL.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["*"]
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

// Annotations of the API server's audit events. Source: kubernetes staging/src/k8s.io/apiserver/pkg/endpoints/filters/authorization.go.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// Audit is what an API server writes down about who asked it for what.
type Audit struct{ log string }

// NewAudit lets an API server that has not started write an audit log into a directory.
func NewAudit(env *envtest.Environment, dir string) (*Audit, error) {
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	a := &Audit{log: filepath.Join(dir, "audit.log")}
	env.ControlPlane.GetAPIServer().Configure().
		Append("audit-policy-file", policy).
		Append("audit-log-path", a.log).
		// In megabytes; the default begins another file after 100.
		Append("audit-log-maxsize", "100000")
	return a, nil
}

// AuditTest holds a test that is a suite by itself against the rights of components. The API server must not have started, and has to
// be stopped by the test's Cleanup.
func AuditTest(t testing.TB, env *envtest.Environment, root, suite string) {
	t.Helper()
	a, err := NewAudit(env, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Check(root, suite, !t.Failed()); err != nil {
			t.Error(err)
		}
	})
}

// Check is called when the API server has stopped. It says what accounts of components had no right to, and which rights
// suites.yaml says this suite uses that it did not. The latter is asked only if all of the suite has run.
func (a *Audit) Check(root, suite string, passed bool) error {
	shipped, err := Read(root)
	if err != nil {
		return err
	}
	seen, err := a.read()
	if err != nil {
		return err
	}
	var errs []error
	for _, refused := range seen.refused {
		errs = append(errs, fmt.Errorf("a right is missing: %s", refused))
	}
	if !passed || partial(flag.CommandLine) {
		return errors.Join(errs...)
	}
	table, err := readTable()
	if err != nil {
		return err
	}
	for _, r := range shipped.rights() {
		if table.suiteOf(r) == suite && !seen.uses(r) {
			errs = append(errs, fmt.Errorf("a right is not used: %s of %s, which suites.yaml gives to %s: remove it, or name the suite that uses it",
				r, r.role, suite))
		}
	}
	return errors.Join(errs...)
}

// choosing are the flags that let only a part of a suite run.
var choosing = []string{
	"test.run", "test.skip", "ginkgo.focus", "ginkgo.skip", "ginkgo.focus-file", "ginkgo.skip-file", "ginkgo.label-filter",
}

// partial says that only a part of the suite runs. The values of Ginkgo's flags are empty for whoever reads them here.
func partial(flags *flag.FlagSet) bool {
	part := false
	flags.Visit(func(f *flag.Flag) { part = part || slices.Contains(choosing, f.Name) })
	return part
}

// seen is what accounts of components asked for.
type seen struct {
	requests map[request]bool
	reasons  map[string]bool
	refused  []string
}

// request is one that was allowed.
type request struct {
	user, verb, resource, namespace, name string
}

func (a *Audit) read() (*seen, error) {
	file, err := os.Open(a.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	s := &seen{requests: map[request]bool{}, reasons: map[string]bool{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		event := &auditv1.Event{}
		if err := json.Unmarshal(lines.Bytes(), event); err != nil {
			return nil, fmt.Errorf("%s: %w", a.log, err)
		}
		s.add(event)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", a.log, err)
	}
	if len(s.requests) == 0 {
		return nil, fmt.Errorf("%s has no request of a component: did the suite run as administrator?", a.log)
	}
	slices.Sort(s.refused)
	s.refused = slices.Compact(s.refused)
	return s, nil
}

func (s *seen) add(event *auditv1.Event) {
	who := event.User
	if event.ImpersonatedUser != nil {
		who = *event.ImpersonatedUser
	}
	if !isComponent(who.Username) || slices.Contains(who.Groups, "system:masters") || event.ObjectRef == nil {
		return
	}
	resource := qualified(event.ObjectRef.APIGroup, strings.TrimSuffix(event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/"))
	asked := request{user: who.Username, verb: event.Verb, resource: resource, namespace: event.ObjectRef.Namespace, name: event.ObjectRef.Name}
	if isRefused(event) {
		s.refused = append(s.refused, fmt.Sprintf("%s may not %s %s in namespace %q", who.Username, asked.verb, resource, asked.namespace))
		return
	}
	s.requests[asked] = true
	s.reasons[event.Annotations[reasonAnnotation]] = true
	if event.Verb == "patch" && event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusCreated {
		// The API server asks for this right too when it knows that there is nothing to patch.
		asked.verb = "create"
		s.requests[asked] = true
	}
}

func isComponent(user string) bool {
	return slices.ContainsFunc([]Account{Controller, Handler, API}, func(a Account) bool { return a.User() == user })
}

// isRefused says that RBAC refused a request. What policies and quotas refuse is none of its business.
func isRefused(event *auditv1.Event) bool {
	if event.Annotations[decisionAnnotation] == "forbid" {
		return true
	}
	status := event.ResponseStatus
	return status != nil && status.Code == http.StatusForbidden &&
		(strings.Contains(status.Message, " cannot ") || strings.Contains(status.Message, "user not permitted"))
}

// uses says that somebody has asked for what only this right gives within its role.
func (s *seen) uses(r right) bool {
	if r.binding != "" {
		for reason := range s.reasons {
			if strings.Contains(reason, `Binding "`+r.binding+`"`) || strings.Contains(reason, `Binding "`+r.binding+`/`) {
				return true
			}
		}
		return false
	}
	for asked := range s.requests {
		if asked.user == r.user && asked.verb == r.verb && asked.resource == r.resource && (r.name == "" || r.name == asked.name) &&
			(!r.everywhere || asked.namespace != Namespace) {
			return true
		}
	}
	return false
}
