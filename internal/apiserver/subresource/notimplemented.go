// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package subresource

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/apiserver/agentclient"
)

// unimplemented is a verb of KubeVirt that Vireo does not implement yet.
type unimplemented struct {
	resource, name, method string
	reason                 string
}

// Reasons why verbs are not implemented.
const (
	noBackup = "VirtualMachineBackups are made without it"
	noSEV    = "guests with encrypted memory do not run"
)

// unimplementedVerbs are in discovery, and need a permission like the others. They return 501 and the reason.
var unimplementedVerbs = []unimplemented{
	{VirtualMachineInstances, "backup", http.MethodPut, noBackup},
	{VirtualMachineInstances, "redefine-checkpoint", http.MethodPut, noBackup},
	{VirtualMachineInstances, "sev/fetchcertchain", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/querylaunchmeasurement", http.MethodGet, noSEV},
	{VirtualMachineInstances, "sev/setupsession", http.MethodPut, noSEV},
	{VirtualMachineInstances, "sev/injectlaunchsecret", http.MethodPut, noSEV},
}

func notImplementedVerbs() []Verb {
	verbs := make([]Verb, 0, len(unimplementedVerbs))
	for _, u := range unimplementedVerbs {
		verb := Verb{Resource: u.resource, Name: u.name, Method: u.method, Doc: "Not implemented: " + u.reason + "."}
		verb.Serve = func(http.ResponseWriter, *http.Request) error { return notImplemented(verb.RBACName(), u.reason) }
		verbs = append(verbs, verb)
	}
	return verbs
}

// notImplemented returns the error of a verb, or of an option of it, that is not implemented.
func notImplemented(verb, reason string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotImplemented, Reason: agentclient.NotImplemented,
		Message: verb + " is not implemented by Vireo yet: " + reason,
		Details: &metav1.StatusDetails{Group: GroupName, Kind: verb},
	}}
}
