// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// ControllerServing is the role of virt-controller's servers: that of the webhooks, to which the API server connects,
// and that of the metrics. virt-controller issues their certificate itself, without a request, so Roles does not
// contain this role.
var ControllerServing = Role{
	Name: "virt-controller-serving", Component: "virt-controller", purposes: serverPurposes, usageNames: serverUsageNames,
}

// WebhooksSecret is the name of the Secret with the CA and the serving certificate of the webhooks and the metrics.
// KubeVirt's.
const WebhooksSecret = "kubevirt-controller-certs"

// MetricsService is the Service under which the metrics of all components are scraped. KubeVirt's.
const MetricsService = "kubevirt-prometheus-metrics"

// ControllerServingSubject returns the subject that virt-api expects of virt-controller. The certificate has it among
// others.
func ControllerServingSubject(namespace string) Subject {
	return Subject{DNSNames: []string{fmt.Sprintf("%s.%s.svc", MetricsService, namespace)}}
}

// DurationAnnotation is an annotation of the Secrets with certificates: the lifetime that was configured for the
// certificate. KubeVirt's.
const DurationAnnotation = "kubevirt.io/duration"

// Keys of a Webhooks' Secret, beside those of the certificate.
const (
	// authorityPrefix precedes the keys of the CA.
	authorityPrefix = "authority-"
	// bundleKey is the key of the trusted CA certificates.
	bundleKey = authorityPrefix + "bundle.crt"
	// formerBundle and formerKey are the keys of the CA that earlier releases of virt-controller created.
	formerBundle, formerKey = "ca.crt", "ca.key"
)

// Webhooks is the certificate of the webhooks' servers, its CA, and the CA certificates to trust. It is immutable.
type Webhooks struct {
	authority Authority
	crt, key  []byte
	leaf      *x509.Certificate
	// bundle are the trusted certificates, as PEM.
	bundle []byte
	// former is what an earlier release stored. It is kept because replicas of that release, while they run, would replace
	// a certificate whose CA is missing.
	former map[string][]byte
}

// WebhooksFrom reads the data of the Secret. Invalid parts are treated as missing and reported in the error.
func WebhooksFrom(data map[string][]byte) (Webhooks, error) {
	own := map[string][]byte{}
	for key, value := range data {
		if name, found := strings.CutPrefix(key, authorityPrefix); found {
			own[name] = value
		}
	}
	authority, err := AuthorityFrom(ControllerServing, own)
	w := Webhooks{authority: authority, bundle: data[bundleKey], former: map[string][]byte{}}
	for _, key := range []string{formerBundle, formerKey} {
		if value, found := data[key]; found {
			w.former[key] = value
		}
	}
	crt, key := data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]
	if len(crt) == 0 && len(key) == 0 {
		return w, err
	}
	pair, invalid := tls.X509KeyPair(crt, key)
	if invalid != nil {
		return w, errors.Join(err, fmt.Errorf("key %s: %w", corev1.TLSCertKey, invalid))
	}
	w.crt, w.key, w.leaf = crt, key, pair.Leaf
	return w, err
}

// Data returns the data of the Secret.
func (w Webhooks) Data() (map[string][]byte, error) {
	own, err := w.authority.Data()
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{bundleKey: w.bundle, corev1.TLSCertKey: w.crt, corev1.TLSPrivateKeyKey: w.key}
	maps.Copy(data, w.former)
	for key, value := range own {
		data[authorityPrefix+key] = value
	}
	return data, nil
}

// Authority returns the CA that signs the certificate.
func (w Webhooks) Authority() Authority { return w.authority }

// Bundle returns the CA certificates that the API server has to trust, as PEM.
func (w Webhooks) Bundle() []byte { return w.bundle }

// Renewal contains the parameters of Webhooks.Renew.
type Renewal struct {
	Now       time.Time
	Lifetimes clusterconfig.Certificates
	// Names are the DNS names of the servers.
	Names []string
	// Trusted are the bundles with which the API server verifies the certificate now.
	Trusted [][]byte
	// Replace renews the certificate even if that is not due.
	Replace bool
}

// Renew renews the CA and the certificate if that is due. A CA signs only once the API server trusts it, and the
// previous CA stays trusted until the certificate has been issued by the new one. It returns when Renew has to be
// called again at the latest.
func (w Webhooks) Renew(r Renewal) (Webhooks, time.Time, error) {
	authority, _, again, err := w.authority.Advance(r.Now, r.Lifetimes)
	if err != nil {
		return Webhooks{}, time.Time{}, err
	}
	previous := w.bundle
	w.authority, w.bundle = authority, authority.Bundle()
	usable := w.leaf != nil && r.Now.Before(w.leaf.NotAfter)
	due := r.Replace || !usable || !w.signed(r.Now) || !r.Now.Before(RenewAt(w.leaf, r.Lifetimes)) ||
		!slices.Equal(w.leaf.DNSNames, r.Names)
	if due && (!usable || authority.current.trustedIn(r.Trusted)) {
		if w.crt, w.key, w.leaf, err = authority.issue(Subject{DNSNames: r.Names}, r.Now,
			r.Lifetimes.ServerDuration); err != nil {
			return Webhooks{}, time.Time{}, err
		}
	}
	if w.signed(r.Now) {
		w.former = nil
	} else {
		w.bundle = merge(w.bundle, previous, w.former[formerBundle])
	}
	if renewal := RenewAt(w.leaf, r.Lifetimes); renewal.After(r.Now) && renewal.Before(again) {
		again = renewal
	}
	return w, again, nil
}

// merge returns the certificates of bundles, each of them once.
func merge(bundles ...[]byte) []byte {
	var merged []*x509.Certificate
	for _, bundle := range bundles {
		certificates, _ := certutil.ParseCertsPEM(bundle) // an empty bundle is an error
		for _, c := range certificates {
			if !slices.ContainsFunc(merged, c.Equal) {
				merged = append(merged, c)
			}
		}
	}
	return encode(merged...)
}

// signed reports whether the CA or one of its predecessors has signed the certificate.
func (w Webhooks) signed(now time.Time) bool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.authority.Bundle())
	_, err := w.leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: ControllerServing.purposes})
	return err == nil
}

// issue issues a certificate with a new key, both as PEM.
func (a Authority) issue(
	subject Subject, now time.Time, duration time.Duration,
) (crt, key []byte, leaf *x509.Certificate, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	if key, err = keyutil.MarshalPrivateKeyToPEM(private); err != nil {
		return nil, nil, nil, fmt.Errorf("cannot write a key: %w", err)
	}
	if crt, err = a.Sign(&x509.CertificateRequest{DNSNames: subject.DNSNames, PublicKey: private.Public()}, now,
		duration); err != nil {
		return nil, nil, nil, err
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("cannot read the certificate: %w", err)
	}
	return crt, key, pair.Leaf, nil
}
