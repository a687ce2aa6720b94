// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxErrorBody bounds how much of an error response is read, in bytes.
	maxErrorBody = 16 << 10
	// maxMessage bounds the message that reaches the caller, in bytes. KubeVirt's websocket client reads 1024 bytes of a Status.
	maxMessage = 512
	// maxRetryAfter bounds the delay that an agent can request from a caller, in seconds.
	maxRetryAfter = 60
)

// forwardedCodes are the response codes of an agent that concern the caller's request, with their reasons. Any other code, such
// as 401 and 403, concerns virt-api's own access to the agent, and the caller gets an internal error.
var forwardedCodes = map[int]metav1.StatusReason{
	http.StatusBadRequest:          metav1.StatusReasonBadRequest,
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusConflict:            metav1.StatusReasonConflict,
	http.StatusUnprocessableEntity: metav1.StatusReasonInvalid,
	http.StatusTooManyRequests:     metav1.StatusReasonTooManyRequests,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusNotImplemented:      NotImplemented,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
	http.StatusGatewayTimeout:      metav1.StatusReasonTimeout,
}

// NotImplemented is the reason of a Status with code 501, for which Kubernetes defines none.
const NotImplemented metav1.StatusReason = "NotImplemented"

// responseError converts an agent's error response to an error. The Status is built anew, because clients act on details of a
// Status, and the agent is not trusted with those.
func responseError(response *http.Response, node string) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // a partial body is good enough for a message
	var status metav1.Status
	message := ""
	if err := json.Unmarshal(body, &status); err == nil && status.Kind == "Status" {
		message = singleLine(status.Message)
	}
	code := response.StatusCode
	reason, known := forwardedCodes[code]
	if !known {
		code, reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		message = strings.TrimSpace(fmt.Sprintf("the agent of node %s refused virt-api with code %d. %s", node, response.StatusCode, message))
	}
	if message == "" {
		message = fmt.Sprintf("the agent of node %s responded %d %s", node, code, http.StatusText(code))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message, Details: retryDetails(response),
	}}
}

// retryDetails returns the delay of the response's Retry-After header, or nil if it has none.
func retryDetails(response *http.Response) *metav1.StatusDetails {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return nil
	}
	return &metav1.StatusDetails{RetryAfterSeconds: int32(min(seconds, maxRetryAfter))}
}

// unreachable converts the error of a request that could not be sent, or whose response could not be read, to a Status.
func unreachable(ctx context.Context, node string, err error) error {
	var noAgent *noAgentError
	var urlError *url.Error
	switch {
	case errors.As(err, &noAgent):
		return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("node %s has no running agent: %s", node, noAgent.reason))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return newError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			fmt.Sprintf("the agent of node %s did not respond in time", node))
	case errors.As(err, &urlError):
		err = urlError.Err // leaves out the URL
	}
	return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the agent of node %s cannot be reached: %s", node, singleLine(err.Error())))
}

func newError(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

// singleLine removes line breaks and control characters from a text, and truncates it to maxMessage bytes.
func singleLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == unicode.ReplacementChar || !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}
