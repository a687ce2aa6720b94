// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package kubevirt

import (
	"context"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
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

const (
	// askingLimit is how long a Pod may run without being ready and without asking for a certificate until somebody should know. A
	// component that is refused tries again every minute.
	askingLimit = 10 * time.Minute
	// askingPods is how many Pods of a component are looked at: what keeps one from asking mostly keeps all.
	askingPods = 100
)

// checkAsking notes the components that run, are not ready and have not even asked for a certificate: the API server refuses their
// requests, of which nobody else can know. It looks while the installation is not complete.
func checkAsking(ctx context.Context, s *Scope) error {
	if s.Rollout.Done || (s.Agents == nil && s.API == nil) {
		return nil
	}
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := s.Client.List(ctx, requests); err != nil {
		return fmt.Errorf("cannot list requests for certificates: %w", err)
	}
	pods := map[string][]corev1.Pod{}
	for _, role := range certificate.Roles() {
		if _, read := pods[role.Component]; !read {
			list := &corev1.PodList{}
			if err := s.Live.List(ctx, list, client.InNamespace(s.Namespace), client.MatchingLabels{v1.AppLabel: role.Component},
				client.Limit(askingPods)); err != nil {
				return fmt.Errorf("cannot list the Pods of %s: %w", role.Component, err)
			}
			pods[role.Component] = list.Items
		}
		for i := range pods[role.Component] {
			if s.reportSilent(&pods[role.Component][i], role, requests.Items) {
				break // One says it for all.
			}
		}
	}
	return nil
}

// reportSilent notes a Pod that should have asked for a certificate of a role long ago, and says whether it is one.
func (s *Scope) reportSilent(pod *corev1.Pod, role certificate.Role, requests []certificatesv1.CertificateSigningRequest) bool {
	since, waits := waiting(pod)
	if !waits || slices.ContainsFunc(requests, func(csr certificatesv1.CertificateSigningRequest) bool { return asks(&csr, pod, role, s.Namespace) }) {
		return false
	}
	late := since.Add(askingLimit)
	if s.Now.Before(late) {
		if s.Look.IsZero() || late.Before(s.Look) {
			s.Look = late
		}
		return false
	}
	s.overdue("Pod %q is not ready since %s, and there is no CertificateSigningRequest of it for %s: see its log, and whether %s may create CertificateSigningRequests",
		pod.Name, since.UTC().Format(time.RFC3339), role.Signer(), role.Requester(s.Namespace))
	return true
}

// waiting says that all containers of a Pod run and that it is not ready, and since when.
func waiting(pod *corev1.Pod) (since time.Time, waits bool) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil }) {
		return time.Time{}, false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionFalse
		}
	}
	return time.Time{}, false
}

// asks says that a request is a Pod's for a certificate of a role. The API server knows the Pod from its token.
func asks(csr *certificatesv1.CertificateSigningRequest, pod *corev1.Pod, role certificate.Role, namespace string) bool {
	return csr.Spec.SignerName == role.Signer() && csr.Spec.Username == role.Requester(namespace) &&
		slices.Contains(csr.Spec.Extra[serviceaccount.PodUIDKey], string(pod.UID))
}
