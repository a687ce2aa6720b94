// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/httpserver"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// vmiResource is the resource in errors, in the singular as in KubeVirt.
var vmiResource = v1.GroupVersion.WithResource("virtualmachineinstance").GroupResource()

// maxErrorText bounds the text of an error, which may contain text from a guest or its launcher. A websocket client reads at most
// 1 KiB of an error.
const maxErrorText = 600

func conflict(name, because string) error {
	return apierrors.NewConflict(vmiResource, name, errors.New(because))
}

func errNoVerb(r *http.Request) error {
	return refusal(http.StatusNotFound, metav1.StatusReasonNotFound, "virt-handler does not serve "+r.Method+" on this path")
}

// refusal returns a Status with exactly this message. The constructors of apierrors have messages of their own for some codes.
func refusal(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

// statusOf returns the Status of an error, with a message that names what failed.
func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &known):
		return known.Status()
	case errors.As(err, &tooLarge):
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the body has more than %d bytes", tooLarge.Limit)).ErrStatus
	case errors.Is(err, context.Canceled):
		return apierrors.NewServiceUnavailable("the request was canceled").ErrStatus
	case errors.Is(err, hypervisor.ErrNoDomain), errors.Is(err, hypervisor.ErrNotRunning):
		return statusFrom(http.StatusConflict, metav1.StatusReasonConflict, "the guest's state does not allow it", err)
	case errors.Is(err, errNoConnection):
		// KubeVirt's code and first words (pkg/virt-api/rest/portforward.go).
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "dialing VM", err)
	case errors.Is(err, hypervisor.ErrGuestSilent), errors.Is(err, hypervisor.ErrGuestRefused):
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "the guest agent failed", err)
	case errors.Is(err, hypervisor.ErrConnecting), errors.Is(err, hypervisor.ErrUnreachable):
		return statusFrom(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the agent has no connection to the guest's hypervisor, try again", err)
	default:
		return statusFrom(http.StatusInternalServerError, metav1.StatusReasonInternalError, "the guest's hypervisor refused", err)
	}
}

func statusFrom(code int32, reason metav1.StatusReason, prefix string, err error) metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: prefix + ": " + hypervisor.CleanLine(err.Error(), maxErrorText)}
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Message = hypervisor.CleanLine(status.Message, maxErrorText)
	log.FromContext(r.Context()).V(3).Info("Refused a request", "method", r.Method, "path", r.URL.Path, "code", status.Code, "error", err.Error())
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	httpserver.WriteJSON(w, int(status.Code), status)
}
