// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// observeInterval is much shorter than the time for which a certificate is used.
const observeInterval = 2 * time.Second

// rotation contains the observed authorities and certificates of the components.
type rotation struct {
	endpoints []endpoint
	// mounts are the directories with the authorities that each process trusts.
	mounts map[string]string

	mu sync.Mutex
	// authorities are those that have signed, by role, and leaves the certificates that were presented, both in the order
	// of observation.
	authorities map[string][]*x509.Certificate
	leaves      map[leafKey][]*x509.Certificate
	// published are the most recently published authorities of each role.
	published map[string][]bundle
	failures  []string
}

// endpoint is a port at which a component's Pod presents a certificate.
type endpoint struct{ role, pod, address string }

// leafKey identifies what presents a certificate: a port, or a Pod as a client.
type leafKey struct{ role, of string }

// bundle is a list of trusted authorities, as PEM, and what trusts it.
type bundle struct {
	by  string
	pem []byte
	// mounted reports whether the kubelet updates it.
	mounted bool
}

// roles returns the roles of all certificates.
func roles() []certificate.Role {
	return append(certificate.Authorities(), certificate.ControllerServing)
}

// followRotation observes the certificates until the spec ends.
func followRotation(ctx context.Context) *rotation {
	GinkgoHelper()
	r := &rotation{mounts: map[string]string{}, authorities: map[string][]*x509.Certificate{},
		leaves: map[leafKey][]*x509.Certificate{}}
	ports := map[string]map[int]certificate.Role{
		"virt-api":        {8443: certificate.APIServing},
		"virt-handler":    {agentapi.ConsolePort: certificate.AgentServing, agentapi.MigrationPort: certificate.AgentMigration},
		"virt-controller": {9443: certificate.ControllerServing, 8443: certificate.ControllerServing},
		// The proxy of exports, and its metrics.
		"virt-exportproxy": {8443: certificate.ExportProxyServing, 8444: certificate.ExportProxyServing},
	}
	for _, pod := range components(ctx) {
		component := pod.Labels[v1.AppLabel]
		for port, role := range ports[component] {
			r.endpoints = append(r.endpoints,
				endpoint{role.Name, pod.Name, net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))})
		}
		switch component {
		case "virt-api":
			r.leaves[leafKey{certificate.APIClient.Name, pod.Name}] = nil
			fallthrough
		case "virt-handler", "virt-exportproxy":
			root := filepath.Join("/proc", strconv.Itoa(podProcess(&pod, component).PID), "root")
			r.mounts[pod.Name] = filepath.Join(root, "etc", component, "trust")
		}
	}
	Expect(r.observe(ctx)).To(Succeed())
	background, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	DeferCleanup(func() {
		stop()
		<-stopped
	})
	go func() {
		defer close(stopped)
		for sleep(background, observeInterval); background.Err() == nil; sleep(background, observeInterval) {
			if err := r.observe(background); err != nil && background.Err() == nil {
				r.mu.Lock()
				r.failures = append(r.failures, time.Now().Format(time.TimeOnly)+" "+err.Error())
				r.mu.Unlock()
			}
		}
	}()
	return r
}

// observe records the certificates and authorities in use. It returns an error unless each certificate is in every
// bundle for its role.
func (r *rotation) observe(ctx context.Context) error {
	leaves, err := r.clientCertificates(ctx)
	if err != nil {
		return err
	}
	for _, e := range r.endpoints {
		leaf, err := presentedAt(ctx, e.address)
		if err != nil {
			return fmt.Errorf("%s at %s: %w", e.pod, e.address, err)
		}
		leaves[leafKey{e.role, e.pod + " at " + e.address}] = leaf
	}
	// These are read after the certificates, because authorities are published before they sign, and removed after their
	// certificates have expired.
	published, err := r.bundles(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for key, leaf := range leaves {
		for _, b := range published[key.role] {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(b.pem)
			if _, err := leaf.Verify(
				x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				errs = append(errs, fmt.Errorf("%s of %s is not trusted by %s: %w", key.role, key.of, b.by, err))
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = published
	for key, leaf := range leaves {
		r.leaves[key] = record(r.leaves[key], leaf)
	}
	for _, role := range roles() {
		signing, err := authorityOf(ctx, role)
		if err != nil {
			return err
		}
		r.authorities[role.Name] = record(r.authorities[role.Name], signing)
	}
	return errors.Join(errs...)
}

// record appends a certificate unless it is the last one.
func record(seen []*x509.Certificate, c *x509.Certificate) []*x509.Certificate {
	if len(seen) > 0 && seen[len(seen)-1].Equal(c) {
		return seen
	}
	return append(seen, c)
}

// problems returns when and where a certificate was not trusted.
func (r *rotation) problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.failures)
}

// missing returns what has not been replaced yet: of each role, an authority with a lifetime of minutes must have
// expired and not be published any more, and each certificate must be signed by a later one.
func (r *rotation) missing() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var missing []string
	later := map[string][]*x509.Certificate{}
	for _, role := range roles() {
		short := slices.DeleteFunc(slices.Clone(r.authorities[role.Name]), func(c *x509.Certificate) bool {
			return c.NotAfter.Sub(c.NotBefore) > 2*shortAuthority // NotBefore is five minutes early
		})
		if len(short) < 2 || time.Now().Before(short[0].NotAfter) {
			missing = append(missing, fmt.Sprintf("%s: %d authorities", role.Name, len(short)))
			continue
		}
		later[role.Name] = short[1:]
		for _, b := range r.published[role.Name] {
			if trusted, err := certutil.ParseCertsPEM(b.pem); err != nil ||
				!b.mounted && slices.ContainsFunc(trusted, short[0].Equal) {
				missing = append(missing, fmt.Sprintf("%s: its authority is published by %s: %v", role.Name, b.by, err))
			}
		}
	}
	for key, leaves := range r.leaves {
		signed := func(by *x509.Certificate) bool { return leaves[len(leaves)-1].CheckSignatureFrom(by) == nil }
		if len(leaves) < 3 || !slices.ContainsFunc(later[key.role], signed) {
			missing = append(missing, fmt.Sprintf("%s of %s: %d certificates", key.role, key.of, len(leaves)))
		}
	}
	slices.Sort(missing)
	return missing
}

// String returns how many authorities and certificates were observed.
func (r *rotation) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for role, seen := range r.authorities {
		lines = append(lines, fmt.Sprintf("%s: %d authorities", role, len(seen)))
	}
	for key, seen := range r.leaves {
		lines = append(lines, fmt.Sprintf("%s of %s: %d certificates", key.role, key.of, len(seen)))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// presentedAt returns the certificate of a server. Servers that verify their clients present it first.
func presentedAt(ctx context.Context, address string) (*x509.Certificate, error) {
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: 20 * time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return nil, fmt.Errorf("the connection is a %T", conn)
	}
	return secured.ConnectionState().PeerCertificates[0], nil
}

// clientCertificates returns the newest client certificate of each Pod of virt-api. Only their requests can be
// observed.
func (r *rotation) clientCertificates(ctx context.Context) (map[leafKey]*x509.Certificate, error) {
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := k8s.List(ctx, requests); err != nil {
		return nil, err
	}
	slices.SortFunc(requests.Items, func(a, b certificatesv1.CertificateSigningRequest) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	newest := map[leafKey]*x509.Certificate{}
	for i := range requests.Items {
		request := &requests.Items[i]
		pod := strings.Join(request.Spec.Extra[serviceaccount.PodNameKey], "")
		// The requests of earlier Pods still exist.
		if request.Spec.SignerName != certificate.APIClient.Signer() || len(request.Status.Certificate) == 0 ||
			r.mounts[pod] == "" {
			continue
		}
		signed, err := certutil.ParseCertsPEM(request.Status.Certificate)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", request.Name, err)
		}
		newest[leafKey{certificate.APIClient.Name, pod}] = signed[0]
	}
	return newest, nil
}

// authorityOf returns the certificate of the authority that signs for a role.
func authorityOf(ctx context.Context, role certificate.Role) (*x509.Certificate, error) {
	name, key := role.AuthoritySecret(), corev1.TLSCertKey
	if role.Name == certificate.ControllerServing.Name {
		name, key = certificate.WebhooksSecret, "authority-"+corev1.TLSCertKey
	}
	secret := &corev1.Secret{}
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: name}, secret); err != nil {
		return nil, err
	}
	signing, err := certutil.ParseCertsPEM(secret.Data[key])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return signing[0], nil
}

// bundles returns the authorities that are trusted for each role: those that are published, and those in the
// components' files.
func (r *rotation) bundles(ctx context.Context) (map[string][]bundle, error) {
	published := &corev1.ConfigMap{}
	if err := k8s.Get(ctx, client.ObjectKey{Namespace: "kubevirt", Name: certificate.BundleName}, published); err != nil {
		return nil, err
	}
	trusted := map[string][]bundle{}
	for _, role := range roles() {
		bundles := []bundle{{by: "ConfigMap " + published.Name, pem: []byte(published.Data[role.Name])}}
		for pod, directory := range r.mounts {
			pem, err := os.ReadFile(filepath.Join(directory, role.Name))
			if err != nil {
				return nil, err
			}
			bundles = append(bundles, bundle{by: "Pod " + pod, pem: pem, mounted: true})
		}
		trusted[role.Name] = bundles
	}
	// The API server is a client of virt-api and of the webhooks.
	for role, bundles := range map[string]func(context.Context) ([]bundle, error){
		certificate.APIServing.Name: apiServiceBundles, certificate.ControllerServing.Name: webhookBundles,
	} {
		more, err := bundles(ctx)
		if err != nil {
			return nil, err
		}
		trusted[role] = append(trusted[role], more...)
	}
	return trusted, nil
}

func apiServiceBundles(ctx context.Context) ([]bundle, error) {
	var bundles []bundle
	for _, version := range v1.SubresourceVersions {
		service := &unstructured.Unstructured{}
		service.SetGroupVersionKind(manifests.APIServiceKind)
		if err := k8s.Get(ctx, client.ObjectKey{Name: version + "." + v1.SubresourceGroupName}, service); err != nil {
			return nil, err
		}
		encoded, _, err := unstructured.NestedString(service.Object, "spec", "caBundle")
		if err != nil {
			return nil, err
		}
		pem, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return nil, err
		}
		bundles = append(bundles, bundle{by: "APIService " + service.GetName(), pem: pem})
	}
	return bundles, nil
}

func webhookBundles(ctx context.Context) ([]bundle, error) {
	mutating, validating := &admissionv1.MutatingWebhookConfiguration{}, &admissionv1.ValidatingWebhookConfiguration{}
	for name, object := range map[string]client.Object{
		"virt-controller-mutating-webhook-configuration": mutating, "virt-controller-validating-webhook-configuration": validating,
	} {
		if err := k8s.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
			return nil, err
		}
	}
	var bundles []bundle
	for i := range mutating.Webhooks {
		bundles = append(bundles,
			bundle{by: "webhook " + mutating.Webhooks[i].Name, pem: mutating.Webhooks[i].ClientConfig.CABundle})
	}
	for i := range validating.Webhooks {
		bundles = append(bundles,
			bundle{by: "webhook " + validating.Webhooks[i].Name, pem: validating.Webhooks[i].ClientConfig.CABundle})
	}
	return bundles, nil
}
