// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package certificate

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestIssue(t *testing.T) {
	now := time.Now()
	lifetimes := clusterconfig.NewStore().Certificates()
	authority, _, _, err := (Authority{role: Exporter}).Advance(now, lifetimes)
	if err != nil {
		t.Fatal(err)
	}
	caEnd, _ := authority.End(now, lifetimes)
	for name, tc := range map[string]struct{ end, want time.Time }{
		"before the CA": {now.Add(time.Hour), now.Add(time.Hour)},
		"after the CA":  {caEnd.Add(time.Hour), caEnd},
	} {
		crt, key, err := authority.Issue(Subject{DNSNames: []string{"virt-export-e.default.svc"}}, now, tc.end)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(crt, key)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(authority.Bundle())
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "virt-export-e.default.svc"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "virt-export-f.default.svc"}); err == nil {
			t.Errorf("%s: it is the certificate of another export", name)
		}
		if got := pair.Leaf.NotAfter; got.Sub(tc.want).Abs() > time.Second {
			t.Errorf("%s: it ends at %s, want %s", name, got, tc.want)
		}
	}
	if _, _, err := (Authority{role: Exporter}).Issue(Subject{}, now, now.Add(time.Hour)); err == nil {
		t.Error("there is no CA")
	}
}
