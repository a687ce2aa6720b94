// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
)

// Paths of the upload proxy. The asynchronous one answers when it has the data, the other when the data is on the volume.
// https://github.com/kubevirt/containerized-data-importer/blob/main/pkg/common/common.go
const (
	pathAsync = "/v1beta1/upload-async"
	pathSync  = "/v1beta1/upload"
)

// tokenKind is what one asks for to get a token for one upload. It is answered by CDI's aggregated API and stored nowhere.
var tokenKind = schema.GroupVersionKind{Group: "upload.cdi.kubevirt.io", Version: "v1beta1", Kind: "UploadTokenRequest"}

// configName is the name of the one CDIConfig.
const configName = "config"

// proxy is the way to the upload proxy.
type proxy struct {
	url  *url.URL
	http *http.Client
}

// checkCDI refuses a cluster that cannot take uploads, before anything is made in it.
func (u *upload) checkCDI() error {
	for _, gvk := range []schema.GroupVersionKind{cdi.GroupVersion.WithKind("DataVolume"), tokenKind} {
		_, err := u.objects.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
		if meta.IsNoMatchError(err) {
			group := gvk.GroupVersion().String()
			return fmt.Errorf("the cluster does not serve %s: the Containerized Data Importer (CDI), which takes uploads, is not installed or does not run. "+
				"Look at it with:\n    kubectl get cdi,apiservice | grep cdi.kubevirt.io\nand see https://github.com/kubevirt/containerized-data-importer", group)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findProxy takes the URL of the flag, or else the one that CDI's configuration has.
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
		return nil, fmt.Errorf("the URL of the upload proxy is none: %w", err)
	}
	if parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.Host == "" {
		return nil, fmt.Errorf("the URL of the upload proxy is none of http or https: %s", parsed.Redacted())
	}
	parsed.Path = strings.TrimSuffix(strings.TrimSuffix(parsed.Path, pathAsync), pathSync)
	parsed.RawPath = ""
	httpClient, err := u.httpClient(authority)
	return &proxy{url: parsed, http: httpClient}, err
}

// configuredProxy is the URL of CDI's configuration and the authority that signed the certificate there, if it says one.
func (u *upload) configuredProxy(ctx context.Context) (address, authority string, err error) {
	config := &unstructured.Unstructured{}
	config.SetGroupVersionKind(cdi.GroupVersion.WithKind("CDIConfig"))
	if err := u.objects.Get(ctx, client.ObjectKey{Name: configName}, config); err != nil {
		return "", "", fmt.Errorf("CDI's configuration, which has the URL of the upload proxy, cannot be read; --uploadproxy-url says it too: %w", err)
	}
	address, _, _ = unstructured.NestedString(config.Object, "spec", "uploadProxyURLOverride")
	if address == "" {
		address, _, _ = unstructured.NestedString(config.Object, "status", "uploadProxyURL")
	}
	if address == "" {
		return "", "", errors.New("uploadproxy URL not found: CDI's configuration has none, as nothing leads into the cluster. Lead a port there, and use it:\n" +
			"    kubectl port-forward --namespace cdi service/cdi-uploadproxy 8443:443\n" +
			"    --uploadproxy-url=https://localhost:8443 --insecure")
	}
	authority, _, _ = unstructured.NestedString(config.Object, "status", "uploadProxyCA")
	return address, authority, nil
}

func (u *upload) httpClient(authority string) (*http.Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: u.insecure} //nolint:gosec // only when --insecure asks for it
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
		// A redirected POST loses its body, and the token must go nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// at is a URL of the proxy.
func (p *proxy) at(where string) string {
	target := *p.url
	target.Path = path.Join("/", target.Path, where)
	return target.String()
}

// endpoint is the asynchronous path if this proxy has it.
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

// token asks for the right to upload to the claim once. It lasts some minutes.
func (u *upload) token(ctx context.Context) (string, error) {
	request := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"pvcName": u.name}}}
	request.SetGroupVersionKind(tokenKind)
	request.SetNamespace(u.namespace)
	request.SetName("token-for-virtctl")
	err := u.objects.Create(ctx, request)
	if apierrors.IsServiceUnavailable(err) {
		return "", fmt.Errorf("CDI's API server, which gives the token for an upload, does not answer: %s. Look at it with:\n"+
			"    kubectl get apiservice v1beta1.upload.cdi.kubevirt.io", err.Error())
	}
	if err != nil {
		return "", fmt.Errorf("CDI gives no token for an upload to PVC %s: %w", u.name, err)
	}
	token, _, _ := unstructured.NestedString(request.Object, "status", "token")
	if token == "" {
		return "", fmt.Errorf("CDI answered the request for a token for PVC %s with none", u.name)
	}
	return token, nil
}
