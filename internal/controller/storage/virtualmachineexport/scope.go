// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	exportapi "github.com/vireo-project/vireo/api/export"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/outcome"
)

// actionExport is the action of an export's events.
const actionExport = "Export"

// scope is one reconciliation of one export.
type scope struct {
	*Reconciler
	// export is the export as read.
	export *exportv1.VirtualMachineExport
	// now is the time of the reconciliation.
	now time.Time
	// authority is the CA of exporters.
	authority certificate.Authority
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
}

// run reconciles the export.
func (s *scope) run(ctx context.Context) error {
	if s.export.DeletionTimestamp != nil {
		return nil // The garbage collector deletes the objects that the export owns.
	}
	observed, err := s.observe(ctx)
	if err != nil {
		return err
	}
	step, err := s.next(ctx, observed)
	if err != nil {
		return err
	}
	if step.Expired {
		return s.expire(ctx)
	}
	s.requeueAfter = step.RequeueAfter
	failure := s.apply(ctx, observed, step)
	if failure != nil && outcome.Failure(failure) == nil || ctx.Err() != nil {
		return errors.Join(failure, ctx.Err())
	}
	status := step.Status
	if failure != nil {
		status = export.Failed(observed, failure)
		if step.Token {
			status.TokenSecretRef = nil // The Secret may not exist.
		}
	}
	// The status is written last, and also if the step failed: then it contains the reason, such as a quota.
	return errors.Join(failure, s.writeStatus(ctx, status))
}

// next plans the next step. Before the Pod is created, it makes sure that no other Pod uses a claim now.
func (s *scope) next(ctx context.Context, observed *export.Observed) (*export.Step, error) {
	step, err := export.Next(observed)
	if err != nil || step.Pod == nil {
		return step, err
	}
	if err := s.readUsersNotOlder(ctx, observed, claimusers.MaxProofAge); err != nil || len(observed.Used) == 0 {
		return step, err
	}
	return export.Next(observed)
}

// expire deletes the export, if it is still the one that was read.
func (s *scope) expire(ctx context.Context) error {
	if err := kit.Delete(ctx, s.Client, s.export, kit.Unchanged(s.export)); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Deleted an export whose time is over")
	return nil
}

// apply applies a step. The Pod is last, because it needs the other objects.
func (s *scope) apply(ctx context.Context, observed *export.Observed, step *export.Step) error {
	if step.Token {
		if err := s.createToken(ctx); err != nil {
			return err
		}
	}
	if step.Service != nil {
		if _, err := s.create(ctx, step.Service, exportapi.ServiceCreatedEvent, "Created service"); err != nil {
			return err
		}
	}
	for _, claim := range step.Claims {
		if _, err := s.create(ctx, claim, "", ""); err != nil {
			return err
		}
	}
	switch {
	case step.Pod != nil:
		if err := s.createCertificate(ctx, step); err != nil {
			return err
		}
		return s.createPod(ctx, step.Pod)
	case step.Delete:
		return s.deletePod(ctx, observed.Pod, step)
	case step.Stop:
		_, err := optimistic.Patch(ctx, s.Client, observed.Pod,
			func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](export.StopDeadline) })
		if err != nil {
			return fmt.Errorf("patch the deadline of Pod %s: %w", client.ObjectKeyFromObject(observed.Pod), err)
		}
	case step.Content != "":
		_, err := optimistic.Patch(ctx, s.Client, observed.Pod, func(pod *corev1.Pod) {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, export.ContentAnnotation, step.Content)
		})
		if err != nil {
			return fmt.Errorf("patch Pod %s: %w", client.ObjectKeyFromObject(observed.Pod), err)
		}
	}
	return nil
}

// create creates an object. If it exists already, the cache was stale, or the next reconciliation reports that the
// object does not belong to the export.
func (s *scope) create(ctx context.Context, object client.Object, reason, text string) (created bool, err error) {
	if pod, ok := object.(*corev1.Pod); ok {
		err = kit.CreatePod(ctx, s.Client, s.APIReader, pod, export.Container)
	} else {
		err = s.Client.Create(ctx, object)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("create %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	if reason != "" {
		s.Recorder.Eventf(s.export, nil, corev1.EventTypeNormal, reason, actionExport, "%s %s/%s", text,
			object.GetNamespace(), object.GetName())
	}
	return true, nil
}

// createPod creates the Pod. The cache contains only the Pods of exporters, so another Pod of that name is detected
// only here.
func (s *scope) createPod(ctx context.Context, pod *corev1.Pod) error {
	created, err := s.create(ctx, pod, exportapi.ExporterPodCreatedEvent, "Created exporter pod")
	if err != nil || created {
		return err
	}
	other, err := kit.Read(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{}, s.APIReader)
	if err == nil && other != nil && !metav1.IsControlledBy(other, s.export) {
		err = fmt.Errorf("Pod %s/%s exists and does not belong to the export: delete one of them", pod.Namespace, pod.Name) //nolint:staticcheck // a kind
	}
	return err
}

// cutOff is the grace period, in seconds, of a Pod whose source is in use: a download must not be completed while a
// guest writes.
const cutOff = 1

// deletePod deletes the Pod that was read.
func (s *scope) deletePod(ctx context.Context, pod *corev1.Pod, step *export.Step) error {
	var options []client.DeleteOption
	if step.Paused {
		options = append(options, client.GracePeriodSeconds(cutOff))
	}
	if err := kit.Delete(ctx, s.Client, pod, options...); err != nil {
		return err
	}
	switch {
	case step.Paused:
		s.Recorder.Eventf(s.export, nil, corev1.EventTypeWarning, exportapi.ExportPausedEvent, actionExport,
			"Pod %s/%s is deleted because the source is in use", pod.Namespace, pod.Name)
	case step.Ended:
		s.Recorder.Eventf(s.export, nil, corev1.EventTypeWarning, exportapi.ExporterPodFailedOrCompletedEvent, actionExport,
			"Exporter pod %s/%s is in phase %s", pod.Namespace, pod.Name, pod.Status.Phase)
	}
	return nil
}

// owner makes the export the owner of a Secret.
func (s *scope) owner() []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(s.export,
		exportv1.GroupVersion.WithKind("VirtualMachineExport"))}
}

const (
	// tokenLength is the length of a token, and tokenCharacters what it is made of. KubeVirt's.
	tokenLength     = 20
	tokenCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
)

// createToken creates the Secret with a random token. As in KubeVirt, an existing Secret is used: virt-controller reads
// no Secrets of tenants.
func (s *scope) createToken(ctx context.Context) error {
	name, _ := export.TokenName(s.export)
	token, err := newToken()
	if err != nil {
		return err
	}
	_, err = s.create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.export.Namespace, Name: name, OwnerReferences: s.owner()},
		Type:       corev1.SecretTypeOpaque, StringData: map[string]string{content.TokenKey: token},
	}, exportapi.SecretCreatedEvent, "Created default secret")
	return err
}

// newToken returns a random token.
func newToken() (string, error) {
	out := make([]byte, 0, tokenLength)
	// greater bytes would make some characters more frequent
	const fair = 256 / len(tokenCharacters) * len(tokenCharacters)
	for buffer := make([]byte, 2*tokenLength); ; {
		if _, err := rand.Read(buffer); err != nil {
			return "", fmt.Errorf("cannot make a token: %w", err)
		}
		for _, b := range buffer {
			if int(b) < fair {
				out = append(out, tokenCharacters[int(b)%len(tokenCharacters)])
			}
			if len(out) == tokenLength {
				return string(out), nil
			}
		}
	}
}

// createCertificate creates the Secret with the certificate of the exporter. Its name is derived from the export and
// the time at which the certificate expires, so a Secret that exists is the right one.
func (s *scope) createCertificate(ctx context.Context, step *export.Step) error {
	subject := certificate.Subject{DNSNames: []string{content.ServerName(s.export.Namespace, s.export.Name)}}
	crt, key, err := s.authority.Issue(subject, s.now, step.CertificateEnd)
	if err != nil {
		return fmt.Errorf("certificate of VirtualMachineExport %s: %w", client.ObjectKeyFromObject(s.export), err)
	}
	_, err = s.create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.export.Namespace, Name: step.Certificate, OwnerReferences: s.owner()},
		Type:       corev1.SecretTypeTLS, Data: map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key},
	}, exportapi.SecretCreatedEvent, "Created exporter pod secret")
	return err
}

// writeStatus writes the status if it changed.
func (s *scope) writeStatus(ctx context.Context, status *exportv1.VirtualMachineExportStatus) error {
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.export, func(e *exportv1.VirtualMachineExport) { e.Status = status }))
}
