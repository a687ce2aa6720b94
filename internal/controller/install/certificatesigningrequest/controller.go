// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package certificatesigningrequest approves and signs the certificates of our components.
package certificatesigningrequest

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
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
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
)

// Reconciler approves and signs the certificate requests of our components, and denies all other requests for our
// signers. It ignores requests for other signers.
type Reconciler struct {
	client.Client
	// Namespace is the install namespace.
	Namespace string
	// Config contains the lifetimes of certificates.
	Config *clusterconfig.Store
	// Clock defaults to the system's.
	Clock clock.PassiveClock
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval;certificatesigningrequests/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubevirt.io/virt-handler-serving;kubevirt.io/virt-handler-migration;kubevirt.io/virt-handler-backup;kubevirt.io/virt-api-client;kubevirt.io/virt-api-serving;kubevirt.io/virt-exportproxy-serving,verbs=approve;sign

// SetupWithManager adds the reconciler to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	pending := builder.WithPredicates(kit.Objects(kubevirt.IsPending))
	authority := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == r.Namespace && o.GetLabels()[v1.AppLabel] == certificate.AuthorityLabelValue
	}))
	return outcome.Complete(ctrl.NewControllerManagedBy(mgr).
		Named("certificatesigningrequest").
		For(&certificatesv1.CertificateSigningRequest{}, pending).
		// Requests may have been waiting for their authority.
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(r.Unsigned), authority), r)
}

func approved(csr *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved
	})
}

// Unsigned returns the requests for certificates of our signers that are neither signed nor denied.
func (r *Reconciler) Unsigned(ctx context.Context, _ client.Object) []reconcile.Request {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := r.List(ctx, list); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Cannot list requests for certificates")
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if kubevirt.IsPending(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

// Reconcile signs or denies one request.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := r.Get(ctx, request.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	role, known := certificate.RoleOf(csr.Spec.SignerName)
	if !known || !kubevirt.IsPending(csr) {
		return ctrl.Result{}, nil
	}
	csr = csr.DeepCopy()
	// A request that is approved already is validated too: a user who may approve requests must not choose what is
	// signed.
	wanted, err := role.Validate(&csr.Spec, r.Namespace)
	var refusal *certificate.DeniedError
	if errors.As(err, &refusal) {
		return outcome.Result(ctx, client.IgnoreNotFound(r.refuse(ctx, csr, refusal)))
	}
	if err == nil {
		err = r.grant(ctx, csr, role, wanted)
	}
	return outcome.Result(ctx, client.IgnoreNotFound(err))
}

func (r *Reconciler) refuse(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest, why *certificate.DeniedError,
) error {
	ctrl.LoggerFrom(ctx).Info("Refused a certificate", "signer", csr.Spec.SignerName, "user", csr.Spec.Username, "reason",
		why.Reason, "message", why.Message)
	if approved(csr) {
		r.condition(csr, certificatesv1.CertificateFailed, why.Reason, why.Message)
		return r.Status().Update(ctx, csr)
	}
	r.condition(csr, certificatesv1.CertificateDenied, why.Reason, why.Message)
	return r.SubResource("approval").Update(ctx, csr)
}

func (r *Reconciler) grant(
	ctx context.Context, csr *certificatesv1.CertificateSigningRequest, role certificate.Role,
	wanted *x509.CertificateRequest,
) error {
	// 1. A request is approved only if it can be signed. The watch of the authority's Secret requeues it.
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
	signed, err := authority.Sign(wanted, kit.Now(r.Clock), lifetime(csr, r.Config.Current()))
	if err != nil {
		return err
	}
	// 2. Approval and certificate are separate subresources with separate permissions.
	if !approved(csr) {
		r.condition(csr, certificatesv1.CertificateApproved, certificate.ReasonApproved,
			"The request of a KubeVirt component for its own certificate.")
		if err := r.SubResource("approval").Update(ctx, csr); err != nil {
			return fmt.Errorf("cannot approve: %w", err)
		}
	}
	csr.Status.Certificate = signed
	if err := r.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("cannot write the certificate: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Signed a certificate", "signer", csr.Spec.SignerName, "user", csr.Spec.Username, "names",
		wanted.DNSNames)
	return nil
}

// lifetime returns the configured lifetime, or the one that the request specifies if that is shorter.
func lifetime(csr *certificatesv1.CertificateSigningRequest, config clusterconfig.Config) time.Duration {
	configured := config.Certificates.ServerDuration
	if csr.Spec.ExpirationSeconds == nil {
		return configured
	}
	return min(configured, time.Duration(*csr.Spec.ExpirationSeconds)*time.Second)
}

func (r *Reconciler) condition(
	csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType, reason, message string,
) {
	now := metav1.NewTime(kit.Now(r.Clock))
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now,
		LastTransitionTime: now,
	})
}
