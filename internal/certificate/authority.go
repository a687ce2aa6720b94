// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
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
	// skew is how far the clocks of nodes may differ: certificates begin that much before they were made.
	skew = 5 * time.Minute
	// settling is how long a new authority is trusted before it signs. The kubelet brings a changed ConfigMap into Pods
	// within a minute or two.
	settling = 10 * time.Minute
)

// Keys of the Secret of an authority.
const (
	currentCertificate = "tls.crt"
	currentKey         = "tls.key"
	nextCertificate    = "next.crt"
	nextKey            = "next.key"
	formerCertificates = "former.crt"
)

// Authority signs the certificates of a role. It is a value: nothing changes it.
//
// A successor is made before the end comes. It is trusted at once and signs after settling; until it ends, the one before it
// stays trusted. So there is no moment in which a certificate in use is not trusted by somebody who looks at the bundle.
type Authority struct {
	role    Role
	current *pair
	next    *pair
	former  []*x509.Certificate
}

// pair is a certificate and its key.
type pair struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// begin is when the pair was made.
func (p *pair) begin() time.Time { return p.certificate.NotBefore.Add(skew) }

// AuthorityFrom reads the authority of a role from the data of its Secret. What cannot be used is as if it were not there, and
// the error says what that is.
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

// Data is what the Secret of the authority holds.
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

// Bundle is what whoever checks certificates of the role trusts, as PEM.
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
	out := []byte{} //nolint:prealloc // how long it will be, PEM decides
	for _, c := range certificates {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: c.Raw})...)
	}
	return out
}

// Advance gives the authority as it should be now, whether that is another one, and when to look again.
func (a Authority) Advance(now time.Time, lifetimes clusterconfig.Certificates) (Authority, bool, time.Time, error) {
	changed := false
	expired := func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) }
	former := slices.DeleteFunc(slices.Clone(a.former), expired)
	changed = changed || len(former) != len(a.former)
	a.former = former

	settle := min(settling, lifetimes.CARenewBefore/2)
	if a.next != nil && (a.current == nil || expired(a.current.certificate) || !now.Before(a.next.begin().Add(settle))) {
		if a.current != nil && !expired(a.current.certificate) {
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
	case a.next == nil && !now.Before(renewal()):
		a.next, err = newAuthority(a.role, now, lifetimes.CADuration)
		changed = true
	}
	if err != nil {
		return Authority{}, false, time.Time{}, err
	}
	look := renewal()
	if a.next != nil {
		look = a.next.begin().Add(settle)
	}
	for _, c := range a.former {
		if c.NotAfter.Before(look) {
			look = c.NotAfter
		}
	}
	return a, changed, look, nil
}

// End is when nothing that the authority signed is trusted any more unless it is rotated, and overdue says that it has no successor
// although half of the time between its renewal and its end is over.
func (a Authority) End(now time.Time, lifetimes clusterconfig.Certificates) (end time.Time, overdue bool) {
	if a.current == nil {
		return time.Time{}, false
	}
	end = a.current.certificate.NotAfter
	return end, a.next == nil && !now.Before(end.Add(-lifetimes.CARenewBefore/2))
}

// newAuthority makes one that can sign certificates of its role, and no authority.
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
		// The time tells an authority from the one before it to people; certificates are told by their keys.
		Subject:   pkix.Name{CommonName: fmt.Sprintf("%s@%d", role.Signer(), now.Unix())},
		NotBefore: now.Add(-skew), NotAfter: now.Add(duration),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		// What it signs is for nothing else, even if a certificate says so.
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

// Sign makes the certificate that a request asks for, as PEM. Judge has allowed the request; only its key and its names go
// into the certificate, which never outlives the authority.
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

// newSerial makes a number that no other certificate has.
func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}
