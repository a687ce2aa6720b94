// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package agent

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
	// maxRefusal bounds the body of a refusal that is read.
	maxRefusal = 16 << 10
	// maxMessage bounds the text of it that reaches the caller. A websocket client of KubeVirt reads 1024 bytes of a Status.
	maxMessage = 512
	// maxRetryAfter bounds when an agent can have a caller try again, in seconds.
	maxRetryAfter = 60
)

// passed are the codes of an agent that are about the caller's request, and the reason that goes with each. Any other, such as
// 401 and 403, is about virt-api and the agent, and none of the caller's business.
var passed = map[int]metav1.StatusReason{
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

// NotImplemented is the reason of a Status with code 501. Kubernetes has none for it.
const NotImplemented metav1.StatusReason = "NotImplemented"

// refusal makes an error of an agent's answer. It is a new Status, and not the agent's: that could tell a client to do things.
func refusal(response *http.Response, node string) error {
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal)) // what could be read has to do
	var status metav1.Status
	message := ""
	if err := json.Unmarshal(body, &status); err == nil && status.Kind == "Status" {
		message = plain(status.Message)
	}
	code := response.StatusCode
	reason, known := passed[code]
	if !known {
		code, reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
		message = strings.TrimSpace(fmt.Sprintf("the agent of node %s refused virt-api with code %d. %s", node, response.StatusCode, message))
	}
	if message == "" {
		message = fmt.Sprintf("the agent of node %s answered %d %s", node, code, http.StatusText(code))
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message, Details: retryDetails(response),
	}}
}

// retryDetails say when the agent wants to be asked again, if it says so.
func retryDetails(response *http.Response) *metav1.StatusDetails {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return nil
	}
	return &metav1.StatusDetails{RetryAfterSeconds: int32(min(seconds, maxRetryAfter))}
}

// unreachable makes an error of one that kept an agent from answering.
func unreachable(ctx context.Context, node string, err error) error {
	var gone *absent
	var asked *url.Error
	switch {
	case errors.As(err, &gone):
		return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the agent of node %s is not there: %s", node, gone.why))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return newError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout,
			fmt.Sprintf("the agent of node %s did not answer in time", node))
	case errors.As(err, &asked):
		err = asked.Err // without the URL
	}
	return newError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the agent of node %s cannot be reached: %s", node, plain(err.Error())))
}

func newError(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}}
}

// plain makes one line without control characters of a text, and cuts it.
func plain(text string) string {
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
