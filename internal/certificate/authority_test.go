// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"slices"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

var (
	day       = 24 * time.Hour
	lifetimes = clusterconfig.Default().Certificates
)

// advance writes and reads the CA's Secret, and advances the CA to a time.
func advance(t *testing.T, a Authority, now time.Time) (Authority, bool, time.Time) {
	t.Helper()
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	read, err := AuthorityFrom(a.role, data)
	if err != nil {
		t.Fatal(err)
	}
	next, changed, again, err := read.Advance(now, lifetimes)
	if err != nil {
		t.Fatal(err)
	}
	return next, changed, again
}

// issue issues a certificate of a role for a subject.
func issue(t *testing.T, a Authority, subject Subject, now time.Time) tls.Certificate {
	t.Helper()
	key := ecKey(t, curve)
	request := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: subject.CommonName}, DNSNames: subject.DNSNames, PublicKey: key.Public(),
	}
	crt, err := a.Sign(request, now, lifetimes.ServerDuration)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := certutil.ParseCertsPEM(crt)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{parsed[0].Raw}, Leaf: parsed[0], PrivateKey: key}
}

func verify(a Authority, c tls.Certificate, at time.Time, usage x509.ExtKeyUsage) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Bundle())
	_, err := c.Leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// An authority with another lifetime than the configured one is succeeded at once, and stays trusted.
func TestAuthorityFollowsTheConfiguredLifetime(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, _, _ := advance(t, Authority{role: AgentServing}, now)
	short := clusterconfig.Certificates{CADuration: 20 * time.Minute, CARenewBefore: 12 * time.Minute}
	next, changed, again, err := a.Advance(now.Add(time.Hour), short)
	if err != nil || !changed || next.current != a.current || next.next == nil {
		t.Fatalf("no successor: %v", err)
	}
	if wait := again.Sub(now.Add(time.Hour)); wait != short.CARenewBefore/2 {
		t.Errorf("it signs after %s", wait)
	}
	last, changed, _, err := next.Advance(again, short)
	if err != nil || !changed || lifetime(last.current.certificate) != short.CADuration || len(last.former) != 1 {
		t.Errorf("the successor does not sign: %v", err)
	}
	if _, changed, _, err := last.Advance(again, short); changed || err != nil {
		t.Errorf("it is not stable: %v", err)
	}
}

// A successor that could not be published would sign certificates that no client accepts.
func TestSuccessorSignsOnlyIfItIsPublished(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, _, _ := advance(t, Authority{role: APIServing}, start)
	old := a.Bundle()
	a, _, later := advance(t, a, start.Add(6*day))
	for name, tc := range map[string]struct {
		at        time.Time
		published [][]byte
		signs     bool
	}{
		"nowhere":                           {later, [][]byte{nil}, false},
		"in one of two places":              {later, [][]byte{a.Bundle(), old}, false},
		"in both":                           {later, [][]byte{a.Bundle(), a.Bundle()}, true},
		"too early":                         {later.Add(-time.Second), [][]byte{a.Bundle()}, false},
		"after its predecessor has expired": {start.Add(7 * day), [][]byte{old}, true},
	} {
		next, changed, _, err := a.Advance(tc.at, lifetimes, tc.published...)
		if signs := next.current.certificate.Equal(a.next.certificate); err != nil || changed != tc.signs ||
			signs != tc.signs {
			t.Errorf("%s: it signs: %t, %v", name, signs, err)
		}
	}
}

// After an increase of the lifetimes, an authority has to sign in time before its predecessor expires.
func TestAuthoritiesSucceedInTimeWhenTheirLifetimeIsIncreased(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	short := clusterconfig.Certificates{CADuration: 6 * time.Minute, CARenewBefore: 4 * time.Minute}
	for after := time.Minute; after < 2*short.CADuration; after += 10 * time.Second {
		a, published := Authority{role: APIServing}, map[string]time.Time{}
		for now := start; now.Before(start.Add(time.Hour)); now = now.Add(10 * time.Second) {
			configured := short
			if !now.Before(start.Add(after)) {
				configured = lifetimes
			}
			next, _, _, err := a.Advance(now, configured)
			if err != nil {
				t.Fatal(err)
			}
			a = next
			for _, p := range []*pair{a.current, a.next} {
				if serial := serialOf(p); published[serial].IsZero() {
					published[serial] = now
				}
			}
			if remaining := a.current.certificate.NotAfter.Sub(now); remaining < 90*time.Second {
				t.Fatalf("increased after %s: after %s, the authority that signs expires in %s", after, now.Sub(start), remaining)
			}
			if trusted := now.Sub(published[serialOf(a.current)]); trusted < 90*time.Second && now.Sub(start) > 2*time.Minute {
				t.Fatalf("increased after %s: after %s, an authority signs that is trusted for %s", after, now.Sub(start), trusted)
			}
		}
		if lifetime(a.current.certificate) != lifetimes.CADuration {
			t.Errorf("increased after %s: after an hour, the authority lasts %s", after, lifetime(a.current.certificate))
		}
	}
}

// serialOf identifies a CA; there is none if the pair is nil.
func serialOf(p *pair) string {
	if p == nil {
		return ""
	}
	return p.certificate.SerialNumber.String()
}

// TestCertificatesAreTrustedUntilTheyExpire simulates half a year in steps of some hours. At each step a certificate is
// issued. It must be trusted with the bundle of the step before, with the current one and with all later ones until it
// expires.
func TestCertificatesAreTrustedUntilTheyExpire(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, changed, _ := advance(t, Authority{role: AgentServing}, start)
	if !changed {
		t.Fatal("no authority was made")
	}
	var valid []tls.Certificate
	rotations, before := 0, a
	for now := start; now.Before(start.Add(180 * day)); {
		next, changed, nextTime := advance(t, a, now)
		if changed && next.current != a.current && !next.current.certificate.Equal(a.current.certificate) {
			rotations++
		}
		if again, changed, _ := advance(t, next, now); changed {
			t.Fatalf("%s: it changes again: %+v", now, again)
		}
		if !nextTime.After(now) {
			t.Fatalf("%s: advance again at %s", now, nextTime)
		}
		a = next
		signed := issue(t, a, AgentSubject("blue"), now)
		if err := verify(before, signed, now, x509.ExtKeyUsageServerAuth); err != nil && now != start {
			t.Fatalf("%s: not trusted with the previous bundle: %v", now, err)
		}
		valid = slices.DeleteFunc(append(valid, signed), func(c tls.Certificate) bool { return !now.Before(c.Leaf.NotAfter) })
		for _, c := range valid {
			if err := verify(a, c, now, x509.ExtKeyUsageServerAuth); err != nil {
				t.Fatalf("%s: a certificate of %s is not trusted: %v", now, c.Leaf.NotBefore, err)
			}
		}
		before = a
		// The reconciler advances the CA when Advance requires it, and at other times.
		now = slices.MinFunc([]time.Time{nextTime, now.Add(7 * time.Hour)}, time.Time.Compare)
	}
	if rotations < 25 || rotations > 35 {
		t.Errorf("%d rotations in 180 days of authorities that last 7", rotations)
	}
	if n := len(a.former); n > 2 {
		t.Errorf("%d former authorities are trusted", n)
	}
}

func TestExpiredAuthorityIsReplaced(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, _, _ := advance(t, Authority{role: APIClient}, start)
	later := start.Add(60 * day)
	b, changed, _ := advance(t, a, later)
	if !changed || b.next != nil || len(b.former) != 0 {
		t.Fatalf("changed %t, next %v, former %d", changed, b.next, len(b.former))
	}
	if err := verify(b, issue(t, b, APIClientSubject(), later), later, x509.ExtKeyUsageClientAuth); err != nil {
		t.Error(err)
	}
}

func TestSuccessorReplacesALostAuthority(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, _, _ := advance(t, Authority{role: APIClient}, start)
	a, _, _ = advance(t, a, start.Add(6*day))
	if a.next == nil {
		t.Fatal("no successor")
	}
	data, err := a.Data()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string][]byte){
		"gone":      func(d map[string][]byte) { delete(d, currentKey); delete(d, currentCertificate) },
		"no key":    func(d map[string][]byte) { d[currentKey] = nil },
		"other key": func(d map[string][]byte) { d[currentKey] = d[nextKey] },
		"nonsense":  func(d map[string][]byte) { d[currentCertificate] = []byte("nonsense") },
	} {
		damaged := maps.Clone(data)
		change(damaged)
		read, err := AuthorityFrom(APIClient, damaged)
		if (err == nil) != (name == "gone") {
			t.Errorf("%s: error %v", name, err)
		}
		got, changed, _, err := read.Advance(start.Add(6*day), lifetimes)
		if err != nil || !changed || !got.current.certificate.Equal(a.next.certificate) {
			t.Errorf("%s: changed %t, %v", name, changed, err)
		}
	}
}

func TestCertificateExpiresWithItsAuthority(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, _, _ := advance(t, Authority{role: APIServing}, start)
	near := start.Add(7*day - time.Hour)
	c := issue(t, a, APIServingSubject("kubevirt"), near)
	if !c.Leaf.NotAfter.Equal(a.current.certificate.NotAfter) {
		t.Errorf("the certificate lasts until %s and its authority until %s", c.Leaf.NotAfter, a.current.certificate.NotAfter)
	}
	if c.Leaf.IsCA || c.Leaf.KeyUsage != x509.KeyUsageDigitalSignature || len(c.Leaf.ExtKeyUsage) != 1 {
		t.Errorf("authority %t, key usage %b, %v", c.Leaf.IsCA, c.Leaf.KeyUsage, c.Leaf.ExtKeyUsage)
	}
	if _, err := a.Sign(&x509.CertificateRequest{}, start.Add(8*day), time.Hour); err == nil {
		t.Error("an expired CA signs")
	}
	if _, err := (Authority{role: APIServing}).Sign(&x509.CertificateRequest{}, start, time.Hour); err == nil {
		t.Error("a missing CA signs")
	}
}
