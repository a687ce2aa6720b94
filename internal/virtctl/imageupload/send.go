// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
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
		return response.code >= http.StatusInternalServerError || response.code == http.StatusTooManyRequests ||
			response.code == http.StatusRequestTimeout
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

// proxyError returns an error about a request to the upload proxy. It does not wrap the url.Error, so that it is not
// mistaken for an error of the API server.
func proxyError(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return fmt.Errorf("the certificate of the upload proxy is not trusted; use --insecure to skip its verification: %w",
			err)
	}
	return fmt.Errorf("the upload proxy: %w", err)
}

// Paths of the upload proxy. The asynchronous one responds when it has received the data, the other one when the data
// is on the volume. https://github.com/kubevirt/containerized-data-importer/blob/main/pkg/common/common.go
const (
	pathAsync = "/v1beta1/upload-async"
	pathSync  = "/v1beta1/upload"
)

// tokenKind is a request for an upload token. CDI's aggregated API returns the token in its status and does not store
// it.
var tokenKind = schema.GroupVersionKind{Group: "upload.cdi.kubevirt.io", Version: "v1beta1", Kind: "UploadTokenRequest"}

// configName is the name of the only CDIConfig.
const configName = "config"

// proxy is the upload proxy's URL, with a client for it.
type proxy struct {
	url  *url.URL
	http *http.Client
}

// checkCDI returns an error if the cluster does not serve CDI's API.
func (u *upload) checkCDI() error {
	for _, gvk := range []schema.GroupVersionKind{cdi.GroupVersion.WithKind("DataVolume"), tokenKind} {
		_, err := u.objects.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			group := gvk.GroupVersion().String()
			return fmt.Errorf("the cluster does not serve %s: the Containerized Data Importer (CDI), which receives uploads, is not installed or not running. "+
				"Check it with:\n    kubectl get cdi,apiservice | grep cdi.kubevirt.io\nand see https://github.com/kubevirt/containerized-data-importer", group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findProxy returns the proxy of the flag, or else the proxy in CDI's configuration.
func (u *upload) findProxy(ctx context.Context) (*proxy, error) {
	address, authority := u.proxyURL, ""
	if address == "" {
		var err error
		if address, authority, err = u.configuredProxy(ctx); err != nil {
			return nil, err
		}
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("the URL of the upload proxy is invalid: %w", err)
	}
	if parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.Host == "" {
		return nil, fmt.Errorf("the URL of the upload proxy is not an http or https URL: %s", parsed.Redacted())
	}
	parsed.Path = strings.TrimSuffix(strings.TrimSuffix(parsed.Path, pathAsync), pathSync)
	parsed.RawPath = ""
	httpClient, err := u.httpClient(authority)
	return &proxy{url: parsed, http: httpClient}, err
}

// configuredProxy returns the URL and the certificate authority, if any, in CDI's configuration.
func (u *upload) configuredProxy(ctx context.Context) (address, authority string, err error) {
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(cdi.GroupVersion.WithKind("CDIConfig"))
	if err := u.objects.Get(ctx, client.ObjectKey{Name: configName}, config); err != nil {
		return "", "", fmt.Errorf(
			"CDI's configuration, which has the URL of the upload proxy, cannot be read; specify the URL with --uploadproxy-url: %w", err)
	}
	address, _, _ = unstructured.NestedString(config.Object, "spec", "uploadProxyURLOverride")
	if address == "" {
		address, _, _ = unstructured.NestedString(config.Object, "status", "uploadProxyURL")
	}
	if address == "" {
		return "", "", errors.New(
			"uploadproxy URL not found: CDI's configuration has none, as no Ingress or Route exposes the proxy. Forward a local port to it:\n" +
				"    kubectl port-forward --namespace cdi service/cdi-uploadproxy 8443:443\n" +
				"    --uploadproxy-url=https://localhost:8443 --insecure")
	}
	authority, _, _ = unstructured.NestedString(config.Object, "status", "uploadProxyCA")
	return address, authority, nil
}

func (u *upload) httpClient(authority string) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.insecure} //nolint:gosec // only with --insecure
	if authority != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM([]byte(authority)) {
			return nil, errors.New("status.uploadProxyCA of CDI's configuration has no certificate in it")
		}
		transport.TLSClientConfig.RootCAs = roots
	}
	return &http.Client{
		Transport: transport,
		// A redirected POST would lose its body, and another server must not get the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// at returns the URL of a path at the proxy.
func (p *proxy) at(suffix string) string {
	target := *p.url
	target.Path = path.Join("/", target.Path, suffix)
	return target.String()
}

// endpoint returns the URL for an upload: the asynchronous one if the proxy has it.
func (p *proxy) endpoint(ctx context.Context, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodHead, p.at(pathAsync), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := p.http.Do(request)
	if err != nil {
		return "", err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return p.at(pathSync), nil
	}
	return p.at(pathAsync), nil
}

// token requests a token for one upload to the claim. It expires after a few minutes.
func (u *upload) token(ctx context.Context) (string, error) {
	request := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"pvcName": u.name}}}
	request.SetGroupVersionKind(tokenKind)
	request.SetNamespace(u.namespace)
	request.SetName("token-for-virtctl")
	err := u.objects.Create(ctx, request)
	if apierrors.IsServiceUnavailable(err) {
		return "", fmt.Errorf("CDI's API server, which issues tokens for uploads, does not respond: %s. Check it with:\n"+
			"    kubectl get apiservice v1beta1.upload.cdi.kubevirt.io", err.Error())
	}
	if err != nil {
		return "", fmt.Errorf("CDI refused the token for an upload to PVC %s: %w", u.name, err)
	}
	token, _, _ := unstructured.NestedString(request.Object, "status", "token")
	if token == "" {
		return "", fmt.Errorf("CDI's response to the request for an upload to PVC %s has no token", u.name)
	}
	return token, nil
}
