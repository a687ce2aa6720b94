// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// usbRedir refuses: no guest has a USB port that could be redirected while admission refuses clientPassthrough
// (internal/fieldsupport).
func usbRedir(http.ResponseWriter, *http.Request, *target) error {
	return refusal(http.StatusNotImplemented, metav1.StatusReason("NotImplemented"), "usbredir is not implemented by Vireo yet: no guest has a USB port for clients")
}
