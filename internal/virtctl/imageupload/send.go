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

// maxRefusal is how much of a refusal's body is shown.
const maxRefusal = 4 << 10

// source is the file that is uploaded. Each attempt reads it from its beginning.
type source struct {
	*os.File
	size int64
}

func openSource(name string) (*source, error) {
	file, err := os.Open(name) //nolint:gosec // the user's file, which the user names
	if err != nil {
		return nil, fmt.Errorf("failed to open image file: %w", err)
	}
	// A block device says its size only this way.
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

// refusal is an answer of the upload proxy that is not success.
type refusal struct {
	code int
	text string
}

// Error says what the proxy answered, and what it means.
func (r *refusal) Error() string {
	text := fmt.Sprintf("unexpected return value %d, %s", r.code, r.text)
	switch r.code {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += " (the upload proxy refuses the token: is it the proxy of this cluster?)"
	case http.StatusNotFound:
		text += " (what answers there is not CDI's upload proxy: see --uploadproxy-url)"
	}
	return text
}

// mayPass says that the same request may do better a little later.
func mayPass(err error) bool {
	var refused *refusal
	var certificate *tls.CertificateVerificationError
	var path *os.PathError
	switch {
	case errors.As(err, &refused):
		return refused.code >= http.StatusInternalServerError || refused.code == http.StatusTooManyRequests || refused.code == http.StatusRequestTimeout
	case errors.As(err, &certificate), errors.As(err, &path):
		return false
	}
	return true
}

// send uploads the file, and does it again from the beginning after errors that may pass.
func (u *upload) send(ctx context.Context, p *proxy, from *source) error {
	pause := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 100, Cap: 15 * time.Second}
	for retry := uint(0); ; retry++ {
		// A token for each attempt: the last one has run out when a large upload breaks off.
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
		if !mayPass(err) {
			return fmt.Errorf("error uploading image: %w", err)
		}
		if retry == u.retries {
			return fmt.Errorf("error uploading image after %d retries: %w", retry, err)
		}
		u.say("The upload failed and begins again: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}

func (u *upload) attempt(ctx context.Context, p *proxy, token string, from *source) error {
	target, err := p.endpoint(ctx, token)
	if err != nil {
		return plainly(err)
	}
	progress := newProgress(u.cli.Out, from.size, time.Now)
	defer progress.end()
	// A reader of its own: the transport may go on with that of an attempt that has failed.
	body := progress.watch(io.NewSectionReader(from.File, 0, from.size))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, io.NopCloser(body))
	if err != nil {
		return err
	}
	request.ContentLength = from.size
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/octet-stream")
	// A proxy that refuses says so before it gets the image.
	request.Header.Set("Expect", "100-continue")
	response, err := p.http.Do(request)
	if err != nil {
		return plainly(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	refused := &refusal{code: response.StatusCode, text: strings.TrimSpace(string(text))}
	if where := response.Header.Get("Location"); where != "" {
		refused.text += "the upload proxy is elsewhere, try --uploadproxy-url=" + where
	}
	return refused
}

// plainly says what went wrong with the upload proxy. Without the request's own error around it, it is not taken for one of the
// API server's.
func plainly(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("the certificate of the upload proxy is not to be trusted, and --insecure trusts it all the same: %w", err)
	}
	return fmt.Errorf("the upload proxy: %w", err)
}
