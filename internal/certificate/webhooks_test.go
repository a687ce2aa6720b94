// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/x509"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// verified reports whether a server with the Secret's certificate is trusted with a bundle.
func verified(t *testing.T, w Webhooks, bundle []byte, now time.Time) bool {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err := w.leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, DNSName: w.leaf.DNSNames[0]})
	return err == nil
}

// stored writes and reads the Secret.
func stored(t *testing.T, w Webhooks) Webhooks {
	t.Helper()
	data, err := w.Data()
	if err != nil {
		t.Fatal(err)
	}
	read, err := WebhooksFrom(data)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// TestWebhooksAreAlwaysTrusted simulates rotations. The API server gets each bundle a step late, and has to trust the
// certificate of each step with the bundle that it has.
func TestWebhooksAreAlwaysTrusted(t *testing.T) {
	for name, lifetimes := range map[string]clusterconfig.Certificates{
		"days":    clusterconfig.Default().Certificates,
		"minutes": {CADuration: 20 * time.Minute, CARenewBefore: 12 * time.Minute, ServerDuration: 14 * time.Minute, ServerRenewBefore: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			now, names := start, []string{"hooks.kubevirt.svc"}
			w, _, err := Webhooks{}.Renew(Renewal{Now: now, Lifetimes: lifetimes, Names: names, Trusted: [][]byte{nil}})
			if err != nil {
				t.Fatal(err)
			}
			trusted, authorities, leaves := w.Bundle(), 0, 0
			for now.Before(start.Add(5 * lifetimes.CADuration)) {
				next, again, err := stored(t,
					w).Renew(Renewal{Now: now, Lifetimes: lifetimes, Names: names, Trusted: [][]byte{trusted, trusted}})
				if err != nil {
					t.Fatal(err)
				}
				if !verified(t, next, trusted, now) {
					t.Fatalf("after %s: not trusted", now.Sub(start))
				}
				if !next.authority.current.certificate.Equal(w.authority.current.certificate) {
					authorities++
				}
				if !next.leaf.Equal(w.leaf) {
					leaves++
				}
				if !again.After(now) {
					t.Fatalf("after %s: again at %s", now.Sub(start), again)
				}
				w, trusted, now = next, next.Bundle(), again
			}
			if authorities < 4 || leaves < 4 {
				t.Errorf("%d authorities, %d certificates", authorities, leaves)
			}
		})
	}
}

// The certificate of an earlier release stays trusted, and so does its CA in the Secret, until it is replaced.
func TestWebhooksOfAnEarlierReleaseStayTrusted(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	names := []string{"hooks.kubevirt.svc"}
	renewal := Renewal{Now: now, Lifetimes: lifetimes, Names: names, Trusted: [][]byte{nil}}
	first, _, err := Webhooks{}.Renew(renewal)
	if err != nil {
		t.Fatal(err)
	}
	data, err := first.Data()
	if err != nil {
		t.Fatal(err)
	}
	old, err := WebhooksFrom(map[string][]byte{
		formerBundle: first.Bundle(), formerKey: []byte("its key"),
		corev1.TLSCertKey: data[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: data[corev1.TLSPrivateKeyKey],
	})
	if err != nil {
		t.Fatal(err)
	}
	renewal.Trusted = [][]byte{first.Bundle()}
	second, _, err := old.Renew(renewal)
	if err != nil || !second.leaf.Equal(first.leaf) || !verified(t, second, second.Bundle(), now) {
		t.Fatalf("it is not served with a bundle that has both: %v", err)
	}
	if data, err = second.Data(); err != nil || string(data[formerKey]) != "its key" ||
		string(data[formerBundle]) != string(first.Bundle()) {
		t.Errorf("the earlier CA is not in the Secret: %v", err)
	}
	renewal.Trusted = [][]byte{second.Bundle(), first.Bundle()}
	if third, _, err := stored(t, second).Renew(renewal); err != nil || !third.leaf.Equal(first.leaf) {
		t.Errorf("it is replaced before every webhook trusts the next CA: %v", err)
	}
	renewal.Trusted = [][]byte{second.Bundle(), second.Bundle()}
	third, _, err := stored(t, second).Renew(renewal)
	if err != nil || third.leaf.Equal(first.leaf) || verified(t, first, third.Bundle(), now) ||
		!verified(t, third, third.Bundle(), now) {
		t.Errorf("it is not replaced: %v", err)
	}
	if data, err = third.Data(); err != nil || len(data[formerKey])+len(data[formerBundle]) > 0 {
		t.Errorf("the earlier CA is still in the Secret: %v", err)
	}
}

func TestWebhooksAreReplaced(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	renewal := Renewal{Now: now, Lifetimes: lifetimes, Names: []string{"a"}, Trusted: [][]byte{nil}}
	first, _, err := Webhooks{}.Renew(renewal)
	if err != nil {
		t.Fatal(err)
	}
	renewal.Trusted = [][]byte{first.Bundle()}
	for name, change := range map[string]func(*Renewal){
		"never":       func(*Renewal) {},
		"on demand":   func(r *Renewal) { r.Replace = true },
		"other names": func(r *Renewal) { r.Names = []string{"b"} },
		"expired":     func(r *Renewal) { r.Now, r.Trusted = first.leaf.NotAfter, [][]byte{nil} },
	} {
		changed := renewal
		change(&changed)
		next, _, err := first.Renew(changed)
		if err != nil || next.leaf.Equal(first.leaf) != (name == "never") || next.leaf.DNSNames[0] != changed.Names[0] {
			t.Errorf("%s: %v, %v", name, next.leaf.DNSNames, err)
		}
	}
	if _, err := WebhooksFrom(
		map[string][]byte{corev1.TLSCertKey: first.crt, corev1.TLSPrivateKeyKey: []byte("no key")}); err == nil {
		t.Error("a key that is none is accepted")
	}
}
