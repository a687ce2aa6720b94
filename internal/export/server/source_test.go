// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/vireo-project/vireo/test/pki"
)

func TestTokenFrom(t *testing.T) {
	dir := t.TempDir()
	if _, err := TokenFrom(dir)(); err == nil {
		t.Error("there is no token")
	}
	must(t, os.WriteFile(filepath.Join(dir, "token"), []byte(" abc\n"), 0o600))
	if got, err := TokenFrom(dir)(); err != nil || got != "abc" {
		t.Errorf("got %q, %v", got, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "token"), make([]byte, maxToken+1), 0o600))
	if _, err := TokenFrom(dir)(); err == nil {
		t.Error("a token of any size is read")
	}
}

func TestContentFrom(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "content.json"), []byte(`{"export":"e","volumes":[{"name":"root","disk":true}]}`), 0o600))
	got, err := ContentFrom(dir)()
	if err != nil || len(got.Volumes) != 1 || got.Volumes[0].Mount() != "/export-volumes/root" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func store(t *testing.T, a *pki.Authority, dir, name string) {
	t.Helper()
	pair := a.Issue(name, x509.ExtKeyUsageServerAuth)
	key, err := keyutil.MarshalPrivateKeyToPEM(pair.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "tls.key"), key, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: pair.Certificate[0]}), 0o600))
}

func TestCertificateIsReadAgain(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	c := &Certificate{Directory: dir, Now: func() time.Time { return now }}
	if _, err := c.Current(); err == nil {
		t.Error("there is no certificate")
	}
	a := pki.New(t)
	store(t, a, dir, "first")
	first, err := c.Current()
	must(t, err)
	store(t, a, dir, "second")
	if same, _ := c.Current(); same != first {
		t.Error("it is read for each connection")
	}
	now = now.Add(reload)
	second, err := c.Current()
	must(t, err)
	if second == first || second.Leaf.Subject.CommonName != "second" {
		t.Errorf("got %v", second.Leaf.Subject)
	}
	must(t, os.Remove(filepath.Join(dir, "tls.key")))
	now = now.Add(reload)
	if kept, err := c.Current(); err != nil || kept != second {
		t.Errorf("got %v, %v", kept, err)
	}
}
