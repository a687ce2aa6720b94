// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cli

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// ExitError sets the exit code. Nothing is printed for it.
type ExitError int

// Error implements error.
func (e ExitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failure returns the text that is printed when a command fails: the error, and what to do about it if that is known.
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
		return "The cluster does not serve " + subresources.Group + ". Is KubeVirt's API installed? Check it with:\n" +
			"    kubectl get apiservice v1." + subresources.Group
	case meta.IsNoMatchError(err):
		return "The cluster does not have this kind. The kinds that it has:\n    kubectl api-resources | grep kubevirt.io"
	case apierrors.IsServiceUnavailable(err):
		return "virt-api does not respond. Check it with:\n" +
			"    kubectl get apiservice v1." + subresources.Group + "\n" +
			"    kubectl get pods --all-namespaces --selector kubevirt.io=virt-api"
	case apierrors.IsForbidden(err):
		return "The ClusterRoles kubevirt.io:edit and kubevirt.io:admin grant this permission. What you may do:\n" +
			"    kubectl auth can-i --list | grep kubevirt.io"
	case apierrors.IsUnauthorized(err):
		return "The cluster does not know these credentials. The credentials in use:\n    kubectl config view --minify"
	case errors.As(err, &unreachable) && unreachable.Op == "dial" && errors.As(err, &request):
		return "The cluster cannot be reached. The cluster in use:\n    kubectl config current-context && kubectl cluster-info"
	}
	return ""
}

// isAPIMissing reports whether the cluster does not serve the API at all. A 404 for a missing object names the object.
func isAPIMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil || details.Name == "" {
		return true
	}
	return slices.ContainsFunc(details.Causes, func(cause metav1.StatusCause) bool {
		return cause.Type == metav1.CauseTypeUnexpectedServerResponse && strings.Contains(cause.Message, "404 page not found")
	})
}

// Plain removes control characters, including those of escape sequences, and invisible characters from a text, which may come from a guest.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return -1
	}, text)
}
