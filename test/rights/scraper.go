// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rights

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ScraperToken creates a service account that may get /metrics, like Prometheus', and returns a token of it.
func ScraperToken(ctx context.Context, admin client.Client) (string, error) {
	const name = "scraper"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	for _, object := range []client.Object{
		account,
		&rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: name}},
		},
	} {
		if err := admin.Create(ctx, object); err != nil {
			return "", err
		}
	}
	token := &authenticationv1.TokenRequest{}
	err := admin.SubResource("token").Create(ctx, account, token)
	return token.Status.Token, err
}

// Scrape gets the metrics of a component. It authenticates with a token, unless that is empty.
func Scrape(ctx context.Context, port int, token string) error {
	_, err := Get(ctx, fmt.Sprintf("https://127.0.0.1:%d/metrics", port), token)
	return err
}

// Get returns the body of a component's URL, or an error if the response code is not 200. It authenticates with a
// token, unless that is empty, and does not verify the component's certificate, like KubeVirt's clients.
func Get(ctx context.Context, url, token string) ([]byte, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return body, nil
}

// DialTLS12 connects to a component with TLS 1.2, and returns the error of the handshake.
func DialTLS12(ctx context.Context, port int) error {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	return conn.Close()
}
