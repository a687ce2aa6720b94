// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/exporter/content"
)

// maxToken is the maximum size of a token, in bytes. KubeVirt's tokens have 20 characters.
const maxToken = 4 << 10

// reload is how old a certificate may be before its files are read again.
const reload = 30 * time.Second

// ContentFrom returns a function that reads the content from a directory.
func ContentFrom(directory string) func() (*content.Content, error) {
	return func() (*content.Content, error) {
		raw, err := readFile(filepath.Join(directory, content.ContentFile), content.MaxSize)
		if err != nil {
			return nil, err
		}
		return content.Parse(raw)
	}
}

// TokenFrom returns a function that reads the token from a directory. It trims spaces, which cannot be sent in a
// header.
func TokenFrom(directory string) func() (string, error) {
	return func() (string, error) {
		raw, err := readFile(filepath.Join(directory, content.TokenKey), maxToken)
		if err != nil {
			return "", err
		}
		return strings.TrimSpace(string(raw)), nil
	}
}

// readFile reads a file that the kubelet has written, and returns an error if it has more than maxBytes.
func readFile(name string, maxBytes int64) ([]byte, error) {
	file, err := os.Open(name) //nolint:gosec // the names are those of the exporter's own directories
	if err != nil {
		return nil, err
	}
	defer closeAll(file)
	raw, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > maxBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxBytes)
	}
	return raw, nil
}

// Certificate is a serving certificate in a directory. It is read again periodically, so that a new one is used without
// a restart, which would end all downloads.
type Certificate struct {
	// Directory contains the files tls.crt and tls.key.
	Directory string
	// Now returns the time. Nil means the system's.
	Now func() time.Time

	mu   sync.Mutex
	pair *tls.Certificate
	read time.Time
}

// TLS returns the configuration of a server.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Current() },
	}
}

// Current returns the certificate. If its files cannot be read again, it returns the certificate that was read before.
func (c *Certificate) Current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.Now != nil {
		now = c.Now()
	}
	if c.pair != nil && now.Sub(c.read) < reload {
		return c.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.Directory, corev1.TLSCertKey),
		filepath.Join(c.Directory, corev1.TLSPrivateKeyKey))
	switch {
	case err == nil:
		c.pair, c.read = &pair, now
	case c.pair == nil:
		return nil, errors.Join(errors.New("there is no certificate yet"), err)
	}
	return c.pair, nil
}

const (
	// regionSize is the size of the parts of a disk whose ranges are in one list.
	regionSize = 1 << 32
	// maxRanges is how many ranges all volumes of a backup may have together. Each takes 16 bytes. A disk of 64 GiB of
	// which every other block of 64 KiB has changed has a quarter of them, until the data between what has not changed
	// is read, too.
	maxRanges = 1 << 21
)

// span is a range of bytes.
type span struct{ start, end uint64 }

// budget limits how many ranges the volumes of a backup have together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes one range, and returns false if there are too many.
func (b *budget) take() bool {
	if b.used.Add(1) <= b.limit {
		return true
	}
	b.used.Add(-1)
	return false
}

// coverage is which bytes of a disk were sent, or need not be because the list of blocks reported them as zeros or
// unchanged. If the ranges become too many, new ones are forgotten: then more seems to be missing, and never less.
type coverage struct {
	// budget is shared by all volumes of the backup.
	budget *budget

	mu      sync.Mutex
	regions map[uint64][]span
	covered uint64
	// forgot is set once a range was forgotten.
	forgot bool
}

// add adds ranges.
func (c *coverage) add(ranges ...span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.regions == nil {
		c.regions = map[uint64][]span{}
	}
	for _, r := range ranges {
		for r.start < r.end {
			end := min(r.end, (r.start/regionSize+1)*regionSize)
			c.insert(r.start/regionSize, span{r.start, end})
			r.start = end
		}
	}
}

// insert adds a range of one region.
func (c *coverage) insert(region uint64, r span) {
	list := c.regions[region]
	// Those from first up to last overlap with it or adjoin it.
	first, _ := slices.BinarySearchFunc(list, r.start, func(s span, start uint64) int { return cmp.Compare(s.end, start) })
	last := first
	for last < len(list) && list[last].start <= r.end {
		r.start, r.end = min(r.start, list[last].start), max(r.end, list[last].end)
		c.covered -= list[last].end - list[last].start
		last++
	}
	if first == last && !c.budget.take() {
		c.forgot = true
		return
	}
	c.covered += r.end - r.start
	c.budget.used.Add(int64(min(0, 1-(last-first))))
	c.regions[region] = slices.Replace(list, first, last, r)
}

// complete reports whether all bytes of a disk of this size are covered, and whether ranges were forgotten.
func (c *coverage) complete(size uint64) (all, forgot bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.covered >= size, c.forgot
}
