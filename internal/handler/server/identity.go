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

// onlyVirtAPI serves clients whose verified certificate has virt-api's name. The TLS configuration has verified the chain
// before a request gets here; what is checked again is that it did, and who it was: the certificates of other roles are none
// of virt-api's even if they should come from an authority that is trusted.
func onlyVirtAPI(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 {
			writeError(w, r, apierrors.NewUnauthorized("the agent serves virt-api alone, and the client has no certificate that was verified"))
			return
		}
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != agentapi.ClientName {
			writeError(w, r, apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("the agent serves virt-api alone, and the client's certificate is not virt-api's")))
			return
		}
		next.ServeHTTP(w, r)
	})
}
