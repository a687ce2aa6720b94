// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/export/content"
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

// TokenFrom returns a function that reads the token from a directory. It trims spaces, which cannot be sent in a header.
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

// Certificate is a serving certificate in a directory. It is read again periodically, so that a new one is used without a restart, which
// would end all downloads.
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
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.Directory, corev1.TLSCertKey), filepath.Join(c.Directory, corev1.TLSPrivateKeyKey))
	switch {
	case err == nil:
		c.pair, c.read = &pair, now
	case c.pair == nil:
		return nil, errors.Join(errors.New("there is no certificate yet"), err)
	}
	return c.pair, nil
}
