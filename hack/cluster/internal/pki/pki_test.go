// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pki

import (
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func load(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func TestMake(t *testing.T) {
	directory, now := t.TempDir(), time.Now()
	leaves := []Leaf{
		{File: "server", Authority: Cluster, CommonName: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		{File: "proxy", Authority: FrontProxy, CommonName: "p", Organization: "group"},
	}
	if err := Make(directory, now, leaves); err != nil {
		t.Fatal(err)
	}
	server, proxy := load(t, filepath.Join(directory, "server.crt")), load(t, filepath.Join(directory, "proxy.crt"))
	pool := func(authority string) *x509.CertPool {
		p := x509.NewCertPool()
		p.AddCert(load(t, filepath.Join(directory, authority+".crt")))
		return p
	}
	if _, err := server.Verify(x509.VerifyOptions{Roots: pool(Cluster), DNSName: "10.0.0.1"}); err != nil {
		t.Errorf("a server is not trusted at its address: %v", err)
	}
	client := x509.VerifyOptions{Roots: pool(FrontProxy), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := proxy.Verify(client); err != nil {
		t.Errorf("the front proxy is not trusted by its authority: %v", err)
	}
	client.Roots = pool(Cluster)
	if _, err := proxy.Verify(client); err == nil {
		t.Error("the front proxy could log in as a client: the authorities are one")
	}
	if _, err := proxy.Verify(x509.VerifyOptions{Roots: pool(FrontProxy)}); err == nil {
		t.Error("a client's certificate serves")
	}
	ends, err := Ends(filepath.Join(directory, "ca.crt"))
	if err != nil || ends.Before(now.Add(Lifetime-time.Minute)) {
		t.Errorf("the authority ends %v, %v", ends, err)
	}
	info, err := os.Stat(filepath.Join(directory, "sa.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the service accounts' key: %v, %v", info, err)
	}
}

func TestMakeRefusesAnUnknownAuthority(t *testing.T) {
	if err := Make(t.TempDir(), time.Now(), []Leaf{{File: "x", Authority: "nobody"}}); err == nil {
		t.Error("a certificate without an authority was made")
	}
}
