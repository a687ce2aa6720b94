// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// maxErrorBody is how many bytes of an error response's body are shown.
const maxErrorBody = 4 << 10

// source is the file to upload. Each attempt reads it from the beginning.
type source struct {
	*os.File
	size int64
}

func openSource(name string) (*source, error) {
	file, err := os.Open(name) //nolint:gosec // the user specifies the file
	if err != nil {
		return nil, fmt.Errorf("failed to open image file: %w", err)
	}
	// Stat does not return the size of a block device.
	size, err := file.Seek(0, io.SeekEnd)
	if info, statErr := file.Stat(); statErr == nil && info.IsDir() {
		err = errors.New("it is a directory")
	}
	if err == nil && size == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s cannot be uploaded: %w", name, err)
	}
	return &source{File: file, size: size}, nil
}

// statusError is an unsuccessful response of the upload proxy.
type statusError struct {
	code int
	text string
}

// Error implements error.
func (r *statusError) Error() string {
	text := fmt.Sprintf("unexpected return value %d, %s", r.code, r.text)
	switch r.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += " (the upload proxy rejects the token: is it the proxy of this cluster?)"
	case http.StatusNotFound:
		text += " (the server is not CDI's upload proxy: see --uploadproxy-url)"
	}
	return text
}

// isTemporary reports whether the same request may succeed later.
func isTemporary(err error) bool {
	var response *statusError
	var certificate *tls.CertificateVerificationError
	var path *os.PathError
	switch {
	case errors.As(err, &response):
		return response.code >= http.StatusInternalServerError || response.code == http.StatusTooManyRequests || response.code == http.StatusRequestTimeout
	case errors.As(err, &certificate), errors.As(err, &path):
		return false
	}
	return true
}

// send uploads the file, and starts again from the beginning after temporary errors.
func (u *upload) send(ctx context.Context, p *proxy, from *source) error {
	pause := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 100, Cap: 15 * time.Second}
	for retry := uint(0); ; retry++ {
		// Each attempt needs its own token, because the previous one may have expired during a large upload.
		token, err := u.token(ctx)
		if err != nil {
			return err
		}
		err = u.attempt(ctx, p, token, from)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the upload was interrupted: %w", ctx.Err())
		}
		if !isTemporary(err) {
			return fmt.Errorf("error uploading image: %w", err)
		}
		if retry == u.retries {
			return fmt.Errorf("error uploading image after %d retries: %w", retry, err)
		}
		u.printf("The upload failed and starts again: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}

func (u *upload) attempt(ctx context.Context, p *proxy, token string, from *source) error {
	target, err := p.endpoint(ctx, token)
	if err != nil {
		return proxyError(err)
	}
	progress := newProgress(u.cli.Out, from.size, time.Now)
	defer progress.finish()
	// Each attempt has its own reader, because the transport may still use that of a failed attempt.
	body := progress.watch(io.NewSectionReader(from.File, 0, from.size))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, io.NopCloser(body))
	if err != nil {
		return err
	}
	request.ContentLength = from.size
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/octet-stream")
	// The proxy can reject the request before the image is sent.
	request.Header.Set("Expect", "100-continue")
	response, err := p.http.Do(request)
	if err != nil {
		return proxyError(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	failure := &statusError{code: response.StatusCode, text: strings.TrimSpace(string(text))}
	if location := response.Header.Get("Location"); location != "" {
		failure.text += "the upload proxy redirects, try --uploadproxy-url=" + location
	}
	return failure
}

// proxyError returns an error about a request to the upload proxy. It does not wrap the url.Error, so that it is not mistaken for an error
// of the API server.
func proxyError(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("the certificate of the upload proxy is not trusted; use --insecure to skip its verification: %w", err)
	}
	return fmt.Errorf("the upload proxy: %w", err)
}
