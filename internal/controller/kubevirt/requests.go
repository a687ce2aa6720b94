// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/vireo-project/vireo/internal/certificate"
)

// Unanswered says that a component asks for a certificate and that nobody has signed or refused it.
func Unanswered(csr *certificatesv1.CertificateSigningRequest) bool {
	_, ours := certificate.RoleOf(csr.Spec.SignerName)
	if !ours || len(csr.Status.Certificate) > 0 {
		return false
	}
	for _, c := range csr.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return false
		}
	}
	return true
}

// checkRequests notes the requests for certificates that have waited for so long that their holders may be without one soon. Requests
// of anybody but our components say nothing about the installation.
func checkRequests(ctx context.Context, s *Scope) error {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := s.Client.List(ctx, list); err != nil {
		return fmt.Errorf("cannot list requests for certificates: %w", err)
	}
	for i := range list.Items {
		csr := &list.Items[i]
		role, ours := certificate.RoleOf(csr.Spec.SignerName)
		if !ours || csr.Spec.Username != role.Requester(s.Namespace) || !Unanswered(csr) {
			continue
		}
		late := csr.CreationTimestamp.Add(certificate.UnansweredLimit(s.Config.Certificates))
		if s.Now.Before(late) {
			if s.Look.IsZero() || late.Before(s.Look) {
				s.Look = late
			}
			continue
		}
		s.overdue("CertificateSigningRequest %q of %s (%s) was not answered since %s: see the log of virt-controller, and whether it may sign for that signer",
			csr.Name, csr.Spec.Username, csr.Spec.SignerName, csr.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	return nil
}
