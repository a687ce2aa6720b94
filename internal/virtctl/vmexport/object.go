// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmexport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const exportKind = "VirtualMachineExport"

// errExists is the error for an export that exists already.
var errExists = errors.New("already exists")

// create creates the export, and the Secret with its token.
func (e *export) create(ctx context.Context) error {
	secret := "secret-" + e.key.Name
	vmExport := &exportv1.VirtualMachineExport{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.key.Namespace, Name: e.key.Name, Labels: e.labels,
			Annotations: e.annotations},
		Spec: exportv1.VirtualMachineExportSpec{Source: *e.source(), TokenSecretRef: &secret},
	}
	if e.ttl > 0 {
		vmExport.Spec.TTLDuration = &metav1.Duration{Duration: e.ttl}
	}
	err := e.objects.Create(ctx, vmExport)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("VirtualMachineExport '%s' %w", e.key, errExists)
	}
	if err != nil {
		return err
	}
	owner := metav1.NewControllerRef(vmExport, exportv1.GroupVersion.WithKind(exportKind))
	owner.BlockOwnerDeletion = ptr.To(false) // true requires a permission for exports in some clusters
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.key.Namespace, Name: secret,
			OwnerReferences: []metav1.OwnerReference{*owner}},
		Type: corev1.SecretTypeOpaque, Data: map[string][]byte{content.TokenKey: []byte(rand.Text())},
	}
	if err := e.createToken(ctx, vmExport, token); err != nil {
		return fmt.Errorf("the export was created, but not the Secret with its token: %w", err)
	}
	e.printf("VirtualMachineExport '%s' created succesfully", e.key) //nolint:misspell // KubeVirt's text
	return nil
}

// createToken creates the Secret with an export's token. One that exists is the user's, and has the token, unless it
// belongs to an earlier
// export of the name: that one is about to be removed by the garbage collector, and is replaced.
func (e *export) createToken(ctx context.Context, vmExport *exportv1.VirtualMachineExport, token *corev1.Secret) error {
	wanted := token.DeepCopy()
	err := e.objects.Create(ctx, token)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	found := &corev1.Secret{}
	switch err := e.objects.Get(ctx, client.ObjectKeyFromObject(wanted), found); {
	case apierrors.IsNotFound(err):
		return e.objects.Create(ctx, wanted)
	case err != nil:
		return err
	}
	owner := metav1.GetControllerOf(found)
	if owner == nil || owner.Kind != exportKind || owner.UID == vmExport.UID {
		return nil
	}
	err = e.objects.Delete(ctx, found, client.Preconditions{UID: ptr.To(found.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Secret %s of an earlier export: %w", client.ObjectKeyFromObject(found), err)
	}
	return e.objects.Create(ctx, wanted)
}

// remove deletes the export.
func (e *export) remove(ctx context.Context) error {
	vmExport := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: e.key.Namespace, Name: e.key.Name}}
	switch err := e.objects.Delete(ctx, vmExport); {
	case apierrors.IsNotFound(err):
		e.printf("VirtualMachineExport '%s' does not exist", e.key)
		return nil
	case err != nil:
		return err
	}
	e.printf("VirtualMachineExport '%s' deleted succesfully", e.key) //nolint:misspell // KubeVirt's text
	return nil
}

// await waits until the export is ready, and returns it.
func (e *export) await(ctx context.Context) (*exportv1.VirtualMachineExport, error) {
	limited, cancel := context.WithTimeout(ctx, e.readiness)
	defer cancel()
	vmExport, shown := &exportv1.VirtualMachineExport{}, ""
	err := cli.Poll(limited, func(ctx context.Context) (bool, error) {
		if err := e.objects.Get(ctx, e.key, vmExport); err != nil {
			return false, err
		}
		if vmExport.Status != nil && vmExport.Status.Phase == exportv1.Ready && vmExport.Status.Links != nil {
			return true, nil
		}
		if text := waitsFor(vmExport); text != shown {
			shown = text
			e.printf("waiting for VM Export %s status to be ready... %s", e.key.Name, text)
		}
		return false, nil
	})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return nil, fmt.Errorf("VirtualMachineExport '%s' was not ready within %s: %s", e.key, e.readiness,
			cli.Plain(waitsFor(vmExport)))
	}
	return vmExport, err
}

// waitsFor returns what an export waits for.
func waitsFor(vmExport *exportv1.VirtualMachineExport) string {
	if vmExport.Status == nil {
		return "virt-controller has not reconciled it yet"
	}
	var texts []string
	for _, kind := range []exportv1.ConditionType{exportv1.ConditionReady, exportv1.ConditionPVC,
		exportv1.ConditionVolumesCreated} {
		if c := conditions.Find(vmExport.Status.Conditions, kind); c != nil && c.Status != corev1.ConditionTrue &&
			c.Message != "" {
			texts = append(texts, c.Message)
		}
	}
	if len(texts) == 0 {
		return "it is " + string(vmExport.Status.Phase)
	}
	return strings.Join(texts, "; ")
}

// token reads the token of an export.
func (e *export) token(ctx context.Context, vmExport *exportv1.VirtualMachineExport) (string, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: vmExport.Namespace, Name: ptr.Deref(vmExport.Status.TokenSecretRef, "")}
	if err := e.objects.Get(ctx, key, secret); err != nil {
		return "", fmt.Errorf("the token of the export: %w", err)
	}
	token := strings.TrimSpace(string(secret.Data[content.TokenKey]))
	if token == "" {
		return "", fmt.Errorf("secret %s has no key %s", key, content.TokenKey)
	}
	return token, nil
}

// ClaimDownload is a download of all of a claim.
type ClaimDownload struct {
	// Key is that of the export, which is created, and deleted after the download. Claim is the name of the claim.
	Key   client.ObjectKey
	Claim string
	// Output is the file to write, Format its format: gzip, which is the default, or raw.
	Output, Format string
	// PortForward downloads by way of the API server, with a local port, or any if it is 0.
	PortForward bool
	LocalPort   uint16
}

// DownloadClaim downloads a claim as the command does.
func DownloadClaim(ctx context.Context, c *cli.CLI, objects client.Client, d ClaimDownload) error {
	e := &export{cli: c, objects: objects, key: d.Key, options: options{
		pvc: d.Claim, output: d.Output, format: d.Format, portForward: d.PortForward, localPort: d.LocalPort,
		readiness: defaultReadiness,
	}}
	return e.download(ctx)
}
