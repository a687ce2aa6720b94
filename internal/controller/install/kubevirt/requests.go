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
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// IsPending reports whether a request for a certificate of a component was neither signed nor denied and has not
// failed.
func IsPending(csr *certificatesv1.CertificateSigningRequest) bool {
	_, known := certificate.RoleOf(csr.Spec.SignerName)
	if !known || len(csr.Status.Certificate) > 0 {
		return false
	}
	return !slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	})
}

// checkPendingRequests reports as overdue the requests of components that have been pending for so long that the
// component's certificate may expire soon. Requests of other users are ignored.
func checkPendingRequests(ctx context.Context, s *Scope) error {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := s.Client.List(ctx, list); err != nil {
		return fmt.Errorf("cannot list requests for certificates: %w", err)
	}
	for i := range list.Items {
		csr := &list.Items[i]
		role, known := certificate.RoleOf(csr.Spec.SignerName)
		if !known || csr.Spec.Username != role.Requester(s.Namespace) || !IsPending(csr) {
			continue
		}
		late := csr.CreationTimestamp.Add(certificate.PendingLimit(s.Config.Certificates))
		if s.Now.Before(late) {
			s.recheck(late)
			continue
		}
		s.overdue("CertificateSigningRequest %q of %s (%s) is pending since %s: see the log of virt-controller, and whether it may sign for that signer",
			csr.Name, csr.Spec.Username, csr.Spec.SignerName, csr.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	return nil
}

const (
	// requestLimit is how long a Pod may run without being ready and without requesting a certificate until that is
	// reported. A component whose request is rejected retries every minute.
	requestLimit = 10 * time.Minute
	// maxPods is how many Pods of a component are checked: what stops one of them mostly stops all.
	maxPods = 100
)

// checkMissingRequests reports the components that run, are not ready and have not requested a certificate: the API
// server rejects their requests, which only their own logs show. It does so only until the rollout is done.
func checkMissingRequests(ctx context.Context, s *Scope) error {
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
			if err := s.APIReader.List(ctx, list, client.InNamespace(s.Namespace),
				client.MatchingLabels{v1.AppLabel: role.Component},
				client.Limit(maxPods)); err != nil {
				return fmt.Errorf("cannot list the Pods of %s: %w", role.Component, err)
			}
			pods[role.Component] = list.Items
		}
		for i := range pods[role.Component] {
			if s.reportMissing(&pods[role.Component][i], role, requests.Items) {
				break // one per role is enough
			}
		}
	}
	return nil
}

// reportMissing reports a Pod as overdue if it should have requested a certificate of a role long ago. It returns
// whether it did.
func (s *Scope) reportMissing(
	pod *corev1.Pod, role certificate.Role, requests []certificatesv1.CertificateSigningRequest,
) bool {
	since, waits := waiting(pod)
	if !waits || slices.ContainsFunc(requests, func(csr certificatesv1.CertificateSigningRequest) bool {
		return isRequestOf(&csr, pod, role, s.Namespace)
	}) {
		return false
	}
	late := since.Add(requestLimit)
	if s.Now.Before(late) {
		s.recheck(late)
		return false
	}
	s.overdue("Pod %q is not ready since %s, and there is no CertificateSigningRequest of it for %s: see its log, and whether %s may create CertificateSigningRequests",
		pod.Name, since.UTC().Format(time.RFC3339), role.Signer(), role.Requester(s.Namespace))
	return true
}

// waiting reports whether all containers of a Pod run but it is not ready, and since when.
func waiting(pod *corev1.Pod) (since time.Time, waits bool) {
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning ||
		slices.ContainsFunc(pod.Status.ContainerStatuses,
			func(c corev1.ContainerStatus) bool { return c.State.Running == nil }) {
		return time.Time{}, false
	}
	ready := podstate.Condition(pod, corev1.PodReady)
	if ready == nil {
		return time.Time{}, false
	}
	return ready.LastTransitionTime.Time, ready.Status == corev1.ConditionFalse
}

// isRequestOf reports whether a Pod made a request for a certificate of a role. The API server takes the Pod from its
// token.
func isRequestOf(
	csr *certificatesv1.CertificateSigningRequest, pod *corev1.Pod, role certificate.Role, namespace string,
) bool {
	return csr.Spec.SignerName == role.Signer() && csr.Spec.Username == role.Requester(namespace) &&
		slices.Contains(csr.Spec.Extra[serviceaccount.PodUIDKey], string(pod.UID))
}
