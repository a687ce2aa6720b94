// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/vireo-project/vireo/internal/agentapi"
)

// onlyVirtAPI rejects clients whose verified certificate does not have virt-api's name. The TLS configuration verifies the chain
// before this; onlyVirtAPI checks that it did, and the name: another role's certificate is rejected even if its authority is
// trusted.
func onlyVirtAPI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 {
			writeError(w, r, apierrors.NewUnauthorized("the agent serves only virt-api, and the client has no certificate that was verified"))
			return
		}
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != agentapi.ClientName {
			writeError(w, r, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("the agent serves only virt-api, and the client's certificate is not virt-api's")))
			return
		}
		next.ServeHTTP(w, r)
	})
}
