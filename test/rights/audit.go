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

// AuditPolicy is an audit policy for an API server, which logs the metadata of each request for a resource. No role of
// a component allows a non-resource URL.
const AuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["*"]
- level: None
  users: ["system:apiserver"]
- level: Metadata
`

// Annotations of the API server's audit events. Source: kubernetes
// staging/src/k8s.io/apiserver/pkg/endpoints/filters/authorization.go.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// Audit compares the audit log of an API server with the roles of config/rbac.
type Audit struct{ log string }

// NewAudit configures an API server, before it is started, to write an audit log to a directory.
func NewAudit(env *envtest.Environment, dir string) (*Audit, error) {
	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(AuditPolicy), 0o600); err != nil {
		return nil, err
	}
	a := &Audit{log: filepath.Join(dir, "audit.log")}
	env.ControlPlane.GetAPIServer().Configure().
		Append("audit-policy-file", policy).
		Append("audit-log-path", a.log).
		// In megabytes. The default rotates the file after 100.
		Append("audit-log-maxsize", "100000")
	return a, nil
}

// AuditTest calls NewAudit, and Check when the test ends, for a test that is a suite by itself. Call it before the API
// server is started, and stop the API server in a Cleanup of the test.
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

// Check returns an error for each denied request of a component, and for each right that suites.yaml assigns to this
// suite and the suite did not use. Unused rights are checked only if all tests of the suite have run. Call it after the
// API server has stopped.
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
	for _, denied := range seen.denied {
		errs = append(errs, fmt.Errorf("a right is missing: %s", denied))
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
			errs = append(errs, fmt.Errorf(
				"a right is not used: %s of %s, which suites.yaml assigns to %s: remove it, or name the suite that uses it",
				r, r.role, suite))
		}
	}
	return errors.Join(errs...)
}

// selectionFlags are the flags that select a part of a suite.
var selectionFlags = []string{
	"test.run", "test.skip", "ginkgo.focus", "ginkgo.skip", "ginkgo.focus-file", "ginkgo.skip-file", "ginkgo.label-filter",
}

// partial reports whether only a part of the suite runs. It checks which flags are set, since the values of Ginkgo's
// flags cannot be read.
func partial(flags *flag.FlagSet) bool {
	found := false
	flags.Visit(func(f *flag.Flag) { found = found || slices.Contains(selectionFlags, f.Name) })
	return found
}

// seen contains the requests of components in the audit log.
type seen struct {
	requests map[request]bool
	reasons  map[string]bool
	denied   []string
}

// request is an allowed request.
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
	slices.Sort(s.denied)
	s.denied = slices.Compact(s.denied)
	return s, nil
}

func (s *seen) add(event *auditv1.Event) {
	user := event.User
	if event.ImpersonatedUser != nil {
		user = *event.ImpersonatedUser
	}
	if !isComponent(user.Username) || slices.Contains(user.Groups, "system:masters") || event.ObjectRef == nil {
		return
	}
	resource := qualified(event.ObjectRef.APIGroup,
		strings.TrimSuffix(event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/"))
	allowed := request{user: user.Username, verb: event.Verb, resource: resource, namespace: event.ObjectRef.Namespace,
		name: event.ObjectRef.Name}
	if isDenied(event) {
		s.denied = append(s.denied,
			fmt.Sprintf("%s may not %s %s in namespace %q", user.Username, allowed.verb, resource, allowed.namespace))
		return
	}
	s.requests[allowed] = true
	s.reasons[event.Annotations[reasonAnnotation]] = true
	if event.Verb == "patch" && event.ResponseStatus != nil && event.ResponseStatus.Code == http.StatusCreated {
		// The API server also authorizes create if the patched object does not exist.
		allowed.verb = "create"
		s.requests[allowed] = true
	}
}

func isComponent(user string) bool {
	return slices.ContainsFunc([]Account{Controller, Handler, API, ExportProxy},
		func(a Account) bool { return a.User() == user })
}

// isDenied reports whether RBAC denied a request. It is false for requests that policies and quotas reject.
func isDenied(event *auditv1.Event) bool {
	if event.Annotations[decisionAnnotation] == "forbid" {
		return true
	}
	status := event.ResponseStatus
	return status != nil && status.Code == http.StatusForbidden &&
		(strings.Contains(status.Message, " cannot ") || strings.Contains(status.Message, "user not permitted"))
}

// uses reports whether a request needed this right.
func (s *seen) uses(r right) bool {
	if r.binding != "" {
		for reason := range s.reasons {
			if strings.Contains(reason, `Binding "`+r.binding+`"`) || strings.Contains(reason, `Binding "`+r.binding+`/`) {
				return true
			}
		}
		return false
	}
	for used := range s.requests {
		if used.user == r.user && used.verb == r.verb && used.resource == r.resource &&
			(r.name == "" || r.name == used.name) &&
			(!r.allNamespaces || used.namespace != Namespace) {
			return true
		}
	}
	return false
}
