// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kubevirt"
)

// CertificateSigningRequestReconciler approves and signs what our components ask for, and refuses what anybody else asks of
// our signers. It touches no request of another signer.
type CertificateSigningRequestReconciler struct {
	client.Client
	// Namespace is the install namespace.
	Namespace string
	// Config has the lifetimes.
	Config *clusterconfig.Store
	// Clock replaces the time in tests.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval;certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubevirt.io/virt-handler-serving;kubevirt.io/virt-handler-migration;kubevirt.io/virt-api-client;kubevirt.io/virt-api-serving,verbs=approve;sign

// SetupWithManager adds the reconciler to a manager.
func (r *CertificateSigningRequestReconciler) SetupWithManager(mgr ctrl.Manager) error {
	pending := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		csr, ok := o.(*certificatesv1.CertificateSigningRequest)
		return ok && kubevirt.Unanswered(csr)
	}))
	authority := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == r.Namespace && o.GetLabels()[v1.AppLabel] == certificate.AuthorityLabelValue
	}))
	return ctrl.NewControllerManagedBy(mgr).
		Named("certificatesigningrequest").
		For(&certificatesv1.CertificateSigningRequest{}, pending).
		// Requests may have been waiting for their authority.
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.waiting), authority).
		Complete(r)
}

func has(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind {
			return true
		}
	}
	return false
}

func (r *CertificateSigningRequestReconciler) waiting(ctx context.Context, _ client.Object) []reconcile.Request {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := r.List(ctx, list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list requests for certificates")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if kubevirt.Unanswered(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// Reconcile answers one request.
func (r *CertificateSigningRequestReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := r.Get(ctx, request.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	role, ours := certificate.RoleOf(csr.Spec.SignerName)
	if !ours || !kubevirt.Unanswered(csr) {
		return ctrl.Result{}, nil
	}
	csr = csr.DeepCopy()
	// Judged even if somebody approved it: what is signed is not left to who has the right to approve.
	wanted, err := role.Judge(&csr.Spec, r.Namespace)
	var refusal *certificate.RefusedError
	if errors.As(err, &refusal) {
		return result(client.IgnoreNotFound(r.refuse(ctx, csr, refusal)), 0)
	}
	if err == nil {
		err = r.grant(ctx, csr, role, wanted)
	}
	return result(client.IgnoreNotFound(err), 0)
}

func (r *CertificateSigningRequestReconciler) refuse(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, why *certificate.RefusedError) error {
	ctrl.LoggerFrom(ctx).Info("Refused a certificate", "signer", csr.Spec.SignerName, "user", csr.Spec.Username, "reason", why.Reason, "message", why.Message)
	if has(csr, certificatesv1.CertificateApproved) {
		r.condition(csr, certificatesv1.CertificateFailed, why.Reason, why.Message)
		return r.Status().Update(ctx, csr)
	}
	r.condition(csr, certificatesv1.CertificateDenied, why.Reason, why.Message)
	return r.SubResource("approval").Update(ctx, csr)
}

func (r *CertificateSigningRequestReconciler) grant(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest, role certificate.Role, wanted *x509.CertificateRequest,
) error {
	// 1. Nothing is approved that cannot be signed. The authority's Secret brings the request back.
	secret := &corev1.Secret{}
	err := r.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: role.AuthoritySecret()}, secret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the authority: %w", err)
	}
	authority, err := certificate.AuthorityFrom(role, secret.Data)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "A part of the authority cannot be used", "secret", secret.Name)
	}
	signed, err := authority.Sign(wanted, now(r.Clock), lifetime(csr, r.Config.Current()))
	if err != nil {
		return err
	}
	// 2. Approval and certificate are two subresources, with a right each.
	if !has(csr, certificatesv1.CertificateApproved) {
		r.condition(csr, certificatesv1.CertificateApproved, certificate.ReasonApproved, "The request of a KubeVirt component for its own certificate.")
		if err := r.SubResource("approval").Update(ctx, csr); err != nil {
			return fmt.Errorf("cannot approve: %w", err)
		}
	}
	csr.Status.Certificate = signed
	if err := r.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("cannot write the certificate: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Signed a certificate", "signer", csr.Spec.SignerName, "user", csr.Spec.Username, "names", wanted.DNSNames)
	return nil
}

// lifetime is that of the KubeVirt object, or a shorter one that was asked for.
func lifetime(csr *certificatesv1.CertificateSigningRequest, config clusterconfig.Config) time.Duration {
	configured := config.Certificates.ServerDuration
	if csr.Spec.ExpirationSeconds == nil {
		return configured
	}
	return min(configured, time.Duration(*csr.Spec.ExpirationSeconds)*time.Second)
}

func (r *CertificateSigningRequestReconciler) condition(
	csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string,
) {
	at := metav1.NewTime(now(r.Clock))
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: at, LastTransitionTime: at,
	})
}
