// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

const (
	// skew is the tolerated difference between the clocks of nodes: the NotBefore of a certificate is that long before its
	// creation.
	skew = 5 * time.Minute
	// settling is how long a new CA is trusted before it signs, if its predecessor is valid for long enough. The kubelet
	// updates a mounted ConfigMap within a minute or two.
	settling = 10 * time.Minute
)

// Keys of the Secret of a CA.
const (
	currentCertificate = "tls.crt"
	currentKey         = "tls.key"
	nextCertificate    = "next.crt"
	nextKey            = "next.key"
	formerCertificates = "former.crt"
)

// Authority is the CA of a role. It is immutable.
//
// Before a CA certificate expires, a successor is created. The successor is trusted at once and signs after settling;
// its predecessor stays trusted until it expires. So every certificate in use is trusted by the current bundle at any
// time.
type Authority struct {
	role    Role
	current *pair // signs
	next    *pair // the successor, or nil
	former  []*x509.Certificate
}

// pair is a CA certificate and its key.
type pair struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// created returns when the pair was created.
func (p *pair) created() time.Time { return created(p.certificate) }

// trustedIn reports whether each bundle contains the certificate.
func (p *pair) trustedIn(bundles [][]byte) bool {
	certificate := bytes.TrimSpace(encode(p.certificate))
	return !slices.ContainsFunc(bundles, func(bundle []byte) bool { return !bytes.Contains(bundle, certificate) })
}

// HasSuccessor reports whether there is a CA that will sign in place of the current one.
func (a Authority) HasSuccessor() bool { return a.next != nil }

// AuthorityFrom reads the CA of a role from the data of its Secret. Invalid parts are treated as missing and reported
// in the error: the returned Authority is usable even if the error is not nil.
func AuthorityFrom(role Role, data map[string][]byte) (Authority, error) {
	a := Authority{role: role}
	var errs [3]error
	a.current, errs[0] = readPair(data, currentCertificate, currentKey)
	a.next, errs[1] = readPair(data, nextCertificate, nextKey)
	if former := data[formerCertificates]; len(former) > 0 {
		a.former, errs[2] = certutil.ParseCertsPEM(former)
	}
	return a, errors.Join(errs[:]...)
}

func readPair(data map[string][]byte, certificate, key string) (*pair, error) {
	if len(data[certificate]) == 0 && len(data[key]) == 0 {
		return nil, nil
	}
	certificates, err := certutil.ParseCertsPEM(data[certificate])
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", certificate, err)
	}
	private, err := keyutil.ParsePrivateKeyPEM(data[key])
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", key, err)
	}
	signer, ok := private.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(certificates[0].PublicKey) {
		return nil, fmt.Errorf("key %s is not that of %s", key, certificate)
	}
	return &pair{certificate: certificates[0], key: signer}, nil
}

// Data returns the data of the CA's Secret.
func (a Authority) Data() (map[string][]byte, error) {
	data := map[string][]byte{}
	for _, part := range []struct {
		pair             *pair
		certificate, key string
	}{{a.current, currentCertificate, currentKey}, {a.next, nextCertificate, nextKey}} {
		if part.pair == nil {
			continue
		}
		key, err := keyutil.MarshalPrivateKeyToPEM(part.pair.key)
		if err != nil {
			return nil, fmt.Errorf("cannot write a key: %w", err)
		}
		data[part.certificate], data[part.key] = encode(part.pair.certificate), key
	}
	if len(a.former) > 0 {
		data[formerCertificates] = encode(a.former...)
	}
	return data, nil
}

// Bundle returns the CA certificates that verifiers of the role's certificates trust, as PEM.
func (a Authority) Bundle() []byte {
	var trusted []*x509.Certificate
	for _, p := range []*pair{a.current, a.next} {
		if p != nil {
			trusted = append(trusted, p.certificate)
		}
	}
	return encode(append(trusted, a.former...)...)
}

func encode(certificates ...*x509.Certificate) []byte {
	out := []byte{} //nolint:prealloc // the length of the PEM text is not known
	for _, c := range certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: c.Raw})...)
	}
	return out
}

// Advance rotates the CA if that is due. published contains the bundles that verifiers use: until its predecessor
// expires, a successor signs only if it is in all of them. It returns the resulting CA, whether it changed, and when
// Advance has to be called again.
func (a Authority) Advance(
	now time.Time, lifetimes clusterconfig.Certificates, published ...[]byte,
) (Authority, bool, time.Time, error) {
	changed := false
	expired := func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) }
	former := slices.DeleteFunc(slices.Clone(a.former), expired)
	changed = changed || len(former) != len(a.former)
	a.former = former

	lost := a.current == nil || expired(a.current.certificate)
	if a.next != nil && (lost || !now.Before(a.signsFrom(lifetimes)) && a.next.trustedIn(published)) {
		if !lost {
			a.former = append(a.former, a.current.certificate)
		}
		a.current, a.next, changed = a.next, nil, true
	}
	renewal := func() time.Time { return a.current.certificate.NotAfter.Add(-lifetimes.CARenewBefore) }
	var err error
	switch {
	case a.current == nil || expired(a.current.certificate):
		a.current, err = newAuthority(a.role, now, lifetimes.CADuration)
		changed = true
	case a.next == nil && (!now.Before(renewal()) || hasOtherLifetime(a.current.certificate, lifetimes.CADuration)):
		a.next, err = newAuthority(a.role, now, lifetimes.CADuration)
		changed = true
	}
	if err != nil {
		return Authority{}, false, time.Time{}, err
	}
	again := renewal()
	if a.next != nil {
		again = a.signsFrom(lifetimes)
	}
	for _, c := range a.former {
		if c.NotAfter.Before(again) {
			again = c.NotAfter
		}
	}
	return a, changed, again, nil
}

// signsFrom returns the time from which the successor signs in place of the current CA. The current CA is then still
// valid for at least half of the time that was left when the successor was created; otherwise its certificates would
// expire before they can be renewed. After an increase of the lifetimes, the returned time may be earlier than
// configured.
func (a Authority) signsFrom(lifetimes clusterconfig.Certificates) time.Time {
	created := a.next.created()
	return created.Add(min(settling, lifetimes.CARenewBefore/2, a.current.certificate.NotAfter.Sub(created)/2))
}

// hasOtherLifetime reports whether a CA certificate was created for another lifetime. Certificates have whole seconds.
func hasOtherLifetime(certificate *x509.Certificate, duration time.Duration) bool {
	return (lifetime(certificate) - duration).Abs() >= time.Second
}

// End returns when the current CA certificate expires. overdue reports that it has no successor although more than half
// of CARenewBefore has passed.
func (a Authority) End(now time.Time, lifetimes clusterconfig.Certificates) (end time.Time, overdue bool) {
	if a.current == nil {
		return time.Time{}, false
	}
	end = a.current.certificate.NotAfter
	return end, a.next == nil && !now.Before(end.Add(-lifetimes.CARenewBefore/2))
}

// newAuthority creates a self-signed CA, which can sign certificates of its role but no intermediate CA.
func newAuthority(role Role, now time.Time, duration time.Duration) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// The time helps people to distinguish a CA from its predecessor. Verification does not use it, but the keys.
		Subject:   pkix.Name{CommonName: fmt.Sprintf("%s@%d", role.Signer(), now.Unix())},
		NotBefore: now.Add(-skew), NotAfter: now.Add(duration),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// Restricts the usages of the certificates that it signs.
		ExtKeyUsage: role.purposes,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make the certificate of an authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate of an authority: %w", err)
	}
	return &pair{certificate: certificate, key: key}, nil
}

// Sign issues the certificate of a request that Role.Validate has accepted, as PEM. It takes only the key and the names
// from the request. The certificate expires with the CA at the latest.
func (a Authority) Sign(request *x509.CertificateRequest, now time.Time, duration time.Duration) ([]byte, error) {
	if a.current == nil || !now.Before(a.current.certificate.NotAfter) {
		return nil, fmt.Errorf("there is no authority for %s yet", a.role.Signer())
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	end := now.Add(duration)
	if last := a.current.certificate.NotAfter; end.After(last) {
		end = last
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: request.Subject.CommonName},
		DNSNames:     request.DNSNames,
		NotBefore:    now.Add(-skew), NotAfter: end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           a.role.purposes,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.current.certificate, request.PublicKey, a.current.key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der}), nil
}

// newSerial returns a random serial number.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
