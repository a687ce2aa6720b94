// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/x509"
	"encoding/pem"
	"math/rand/v2"
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
	must(t, os.WriteFile(filepath.Join(dir, "tls.crt"),
		pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: pair.Certificate[0]}), 0o600))
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

func TestCoverage(t *testing.T) {
	const size = 1000
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		c, model := &coverage{budget: &budget{limit: maxRanges}}, [size]bool{}
		for range 40 {
			start := random.Uint64N(size)
			r := span{start, start + random.Uint64N(min(50, size-start)+1)}
			c.add(r)
			covered := uint64(0)
			for i := range model {
				model[i] = model[i] || uint64(i) >= r.start && uint64(i) < r.end
				if model[i] {
					covered++
				}
			}
			if c.covered != covered || c.ranges() != len(c.regions[0]) || c.all(size) != (covered == size) {
				t.Fatalf("seed %d: %d bytes are covered, not %d", seed, c.covered, covered)
			}
		}
		c.add(span{0, size})
		if !c.all(size) || c.ranges() != 1 {
			t.Fatalf("seed %d: %d bytes in %d ranges are covered", seed, c.covered, c.ranges())
		}
	}
}

func TestCoverageOfLargeDisks(t *testing.T) {
	c := &coverage{budget: &budget{limit: maxRanges}}
	const size = 3*regionSize + 5
	c.add(span{regionSize - 1, size})
	if c.all(size) {
		t.Error("the beginning is not covered")
	}
	if c.add(span{0, regionSize - 1}); !c.all(size) || c.ranges() != 4 {
		t.Errorf("%d bytes in %d ranges are covered", c.covered, c.ranges())
	}
}

func TestCoverageForgetsWhatIsTooMuch(t *testing.T) {
	const limit, size = 100, 220
	shared := &budget{limit: limit}
	a, b := &coverage{budget: shared}, &coverage{budget: shared}
	// One volume may have more than its part.
	for i := range uint64(limit - 1) {
		a.add(span{2 * i, 2*i + 1})
	}
	b.add(span{0, 1})
	if _, forgot := a.complete(size); forgot || a.ranges() != limit {
		t.Errorf("%d bytes in %d ranges are covered", a.covered, a.ranges())
	}
	b.add(span{2, 3}, span{1, 2}, span{5, 6})
	if all, forgot := b.complete(6); all || !forgot || a.ranges() != limit || b.covered != 2 {
		t.Errorf("%d bytes in %d ranges are covered", b.covered, b.ranges())
	}
	if _, forgot := a.complete(size); forgot {
		t.Error("nothing of the first volume was forgotten")
	}
	if a.add(span{0, size}); !a.all(size) || a.ranges() != 2 {
		t.Errorf("%d ranges are left", a.ranges())
	}
	if b.add(span{2, 6}); !b.all(6) {
		t.Error("later ranges do not count")
	}
}

// ranges returns how many ranges all volumes have.
func (c *coverage) ranges() int { return int(c.budget.used.Load()) }

func (c *coverage) all(size uint64) bool {
	all, _ := c.complete(size)
	return all
}
