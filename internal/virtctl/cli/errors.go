// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// ExitError is an error that only sets the exit code: what there is to say has been said.
type ExitError int

// Error makes ExitError an error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failure is what the user reads when a command failed: the error, and what to do about it where that is known.
func (c *CLI) Failure(err error) string {
	text := Plain(err.Error())
	if hint := c.hint(err); hint != "" {
		text += "\n" + hint
	}
	return text
}

func (c *CLI) hint(err error) string {
	var unreachable *net.OpError
	var request *url.Error
	switch {
	case isAPIMissing(err):
		return "The cluster does not serve " + subresources.Group + ". Is it installed, and does this find it?\n" +
			"    kubectl get apiservice v1." + subresources.Group
	case meta.IsNoMatchError(err):
		return "The cluster does not have this kind. What it has:\n    kubectl api-resources | grep kubevirt.io"
	case apierrors.IsServiceUnavailable(err):
		return "virt-api does not answer. Look at it with:\n" +
			"    kubectl get apiservice v1." + subresources.Group + "\n" +
			"    kubectl get pods --all-namespaces --selector kubevirt.io=virt-api"
	case apierrors.IsForbidden(err):
		return "The ClusterRoles kubevirt.io:edit and kubevirt.io:admin give this right. What you may do:\n" +
			"    kubectl auth can-i --list | grep kubevirt.io"
	case apierrors.IsUnauthorized(err):
		return "The cluster does not know these credentials. Which ones are used:\n    kubectl config view --minify"
	case errors.As(err, &unreachable) && unreachable.Op == "dial" && errors.As(err, &request):
		return "The cluster cannot be reached. Which one is meant:\n    kubectl config current-context && kubectl cluster-info"
	}
	return ""
}

// isAPIMissing tells a missing API from a missing object: the API server's own 404 names no object.
func isAPIMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil || details.Name == "" {
		return true
	}
	for _, cause := range details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse && strings.Contains(cause.Message, "404 page not found") {
			return true
		}
	}
	return false
}

// Plain is a text without what a terminal would take for a command, or for an order to write from right to left or nothing at all:
// messages may come from a guest.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return -1
	}, text)
}
