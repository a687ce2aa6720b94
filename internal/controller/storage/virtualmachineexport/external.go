// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// routeList is the kind of lists of OpenShift's Routes. They are read as unstructured objects, because their types
// would add a dependency.
var routeList = schema.GroupVersionKind{Group: "route.openshift.io", Version: "v1", Kind: "RouteList"}

const (
	// rootCAConfigMap contains the certificates of the cluster, among them those of Routes. KubeVirt reads the same
	// ConfigMap.
	rootCAConfigMap = "kube-root-ca.crt"
	rootCAKey       = "ca.crt"
)

// externalAge is how long the external address of virt-exportproxy, which is the same for all exports, is cached.
const externalAge = 30 * time.Second

// externals caches the external address of virt-exportproxy, or that there is none: a request for a kind that the
// cluster does not have, such as Route, makes the client read the list of all kinds again.
type externals struct {
	mu    sync.Mutex
	found bool
	at    time.Time
	last  *export.External
}

// recent returns the cached address unless it is too old.
func (e *externals) recent(now time.Time) (last *export.External, found bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	age := now.Sub(e.at)
	return e.last, e.found && age >= 0 && age < externalAge
}

func (e *externals) keep(found *export.External, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found, e.last, e.at = true, found, now
}

// external returns where virt-exportproxy can be reached from outside, from the cache if that is recent. Nil if it
// cannot be reached.
func (s *scope) external(ctx context.Context) (*export.External, error) {
	if last, found := s.externals.recent(s.now); found {
		return last, nil
	}
	found, err := s.findExternal(ctx)
	if err != nil {
		return nil, err
	}
	s.externals.keep(found, s.now)
	return found, nil
}

// findExternal returns where virt-exportproxy can be reached from outside: by an Ingress of the install namespace, or
// else by a Route. Nil if there is none.
func (s *scope) findExternal(ctx context.Context) (*export.External, error) {
	list := &networkingv1.IngressList{}
	if err := s.APIReader.List(ctx, list, client.InNamespace(s.Namespace)); err != nil {
		return nil, fmt.Errorf("list Ingresses of namespace %s: %w", s.Namespace, err)
	}
	slices.SortFunc(list.Items, func(a, b networkingv1.Ingress) int { return strings.Compare(a.Name, b.Name) })
	for i := range list.Items {
		host := ingressHost(&list.Items[i])
		if host == "" {
			continue
		}
		ca, err := s.ingressCA(ctx, host, &list.Items[i])
		return &export.External{Host: host, CA: ca}, err
	}
	return s.route(ctx)
}

// ingressHost returns the host under which an Ingress serves virt-exportproxy, or "".
func ingressHost(ingress *networkingv1.Ingress) string {
	toProxy := func(b *networkingv1.IngressBackend) bool {
		return b != nil && b.Service != nil && b.Service.Name == content.ProxyService
	}
	for i := range ingress.Spec.Rules {
		rule := &ingress.Spec.Rules[i]
		if rule.Host == "" {
			continue
		}
		if rule.HTTP == nil {
			if toProxy(ingress.Spec.DefaultBackend) {
				return rule.Host
			}
			continue
		}
		for j := range rule.HTTP.Paths {
			if toProxy(&rule.HTTP.Paths[j].Backend) {
				return rule.Host
			}
		}
	}
	return ""
}

// ingressCA returns the certificates in the TLS Secret of an Ingress, or "". The result does not contain the key.
func (s *scope) ingressCA(ctx context.Context, host string, ingress *networkingv1.Ingress) (string, error) {
	name := ""
	for i := range ingress.Spec.TLS {
		entry := &ingress.Spec.TLS[i]
		if entry.SecretName != "" && (name == "" || slices.Contains(entry.Hosts, host)) {
			name = entry.SecretName
		}
	}
	if name == "" {
		return "", nil
	}
	// The Role permits the verb list for Secrets of this namespace, and not get.
	list := &corev1.SecretList{}
	if err := s.APIReader.List(ctx, list, client.InNamespace(s.Namespace),
		client.MatchingFields{"metadata.name": name}); err != nil {
		return "", fmt.Errorf("read Secret %s/%s of Ingress %s: %w", s.Namespace, name, ingress.Name, err)
	}
	if len(list.Items) == 0 {
		return "", nil
	}
	return onlyCertificates(list.Items[0].Data[corev1.TLSCertKey]), nil
}

// onlyCertificates returns the certificates in a PEM text, without anything else in it.
func onlyCertificates(raw []byte) string {
	certificates, err := certutil.ParseCertsPEM(raw)
	if err != nil {
		return ""
	}
	out, err := certutil.EncodeCertificates(certificates...)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// route returns the Route to virt-exportproxy, or nil. Only OpenShift has Routes.
func (s *scope) route(ctx context.Context) (*export.External, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(routeList)
	err := s.APIReader.List(ctx, list, client.InNamespace(s.Namespace))
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list Routes of namespace %s: %w", s.Namespace, err)
	}
	for i := range list.Items {
		host := routeHost(&list.Items[i])
		if host == "" {
			continue
		}
		known, err := kit.Read(ctx, client.ObjectKey{Namespace: s.Namespace, Name: rootCAConfigMap}, &corev1.ConfigMap{},
			s.APIReader)
		if err != nil || known == nil {
			return &export.External{Host: host}, err
		}
		return &export.External{Host: host, CA: onlyCertificates([]byte(known.Data[rootCAKey]))}, nil
	}
	return nil, nil
}

// routeHost returns the host under which a Route serves virt-exportproxy, or "".
func routeHost(route *unstructured.Unstructured) string {
	if to, _, err := unstructured.NestedString(route.Object, "spec", "to", "name"); err != nil ||
		to != content.ProxyService {
		return ""
	}
	ingresses, _, err := unstructured.NestedSlice(route.Object, "status", "ingress")
	if err != nil || len(ingresses) == 0 {
		return ""
	}
	first, _ := ingresses[0].(map[string]any)
	host, _ := first["host"].(string)
	return host
}
