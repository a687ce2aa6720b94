// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/test/pki"
)

func backend(name string) networkingv1.IngressBackend {
	return networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: name}}
}

func ingress(name, host, service string) *networkingv1.Ingress {
	out := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: name}}
	out.Spec.Rules = []networkingv1.IngressRule{{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{
		HTTP: &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{Backend: backend(service)}}},
	}}}
	return out
}

func route(service string, hosts ...any) *unstructured.Unstructured {
	admitted := make([]any, 0, len(hosts))
	for _, host := range hosts {
		admitted = append(admitted, map[string]any{"host": host})
	}
	out := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "route.openshift.io/v1", "kind": "Route", "spec": map[string]any{"to": map[string]any{"name": service}},
		"status": map[string]any{"ingress": admitted},
	}}
	out.SetNamespace("kubevirt")
	out.SetName("export")
	return out
}

func TestExternal(t *testing.T) {
	ca := string(pki.New(t).PEM())
	withTLS := ingress("tls", "a.example", "virt-exportproxy")
	withTLS.Spec.TLS = []networkingv1.IngressTLS{{SecretName: "other", Hosts: []string{"b.example"}},
		{SecretName: "mine", Hosts: []string{"a.example"}}}
	byDefault := ingress("default", "c.example", "")
	byDefault.Spec.Rules[0].HTTP = nil
	byDefault.Spec.DefaultBackend = &networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "virt-exportproxy"}}
	elsewhere := ingress("elsewhere", "d.example", "virt-exportproxy")
	elsewhere.Namespace = "tenant"
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "mine"},
		Data:       map[string][]byte{"tls.crt": []byte("text\n" + ca), "tls.key": []byte("private")},
	}
	roots := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: rootCAConfigMap},
		Data: map[string]string{rootCAKey: ca}}
	for name, tc := range map[string]struct {
		objects []client.Object
		want    *export.External
	}{
		"nothing":                          {nil, nil},
		"an Ingress":                       {[]client.Object{ingress("i", "a.example", "virt-exportproxy")}, &export.External{Host: "a.example"}},
		"an Ingress with TLS":              {[]client.Object{withTLS, secret}, &export.External{Host: "a.example", CA: strings.TrimSpace(ca)}},
		"an Ingress whose Secret is gone":  {[]client.Object{withTLS}, &export.External{Host: "a.example"}},
		"an Ingress by default":            {[]client.Object{byDefault}, &export.External{Host: "c.example"}},
		"an Ingress of another Service":    {[]client.Object{ingress("i", "a.example", "virt-api")}, nil},
		"an Ingress without a host":        {[]client.Object{ingress("i", "", "virt-exportproxy")}, nil},
		"an Ingress of a tenant":           {[]client.Object{elsewhere}, nil},
		"a Route":                          {[]client.Object{route("virt-exportproxy", "r.example"), roots}, &export.External{Host: "r.example", CA: strings.TrimSpace(ca)}},
		"a Route without roots":            {[]client.Object{route("virt-exportproxy", "r.example")}, &export.External{Host: "r.example"}},
		"a Route that is not admitted yet": {[]client.Object{route("virt-exportproxy")}, nil},
		"a Route of another Service":       {[]client.Object{route("virt-api", "r.example")}, nil},
		"an Ingress and a Route": {
			[]client.Object{route("virt-exportproxy", "r.example"), ingress("i", "a.example", "virt-exportproxy")},
			&export.External{Host: "a.example"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme() // the fake adds kinds to it
			if err := clientgoscheme.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tc.objects...).
				WithIndex(&corev1.Secret{}, "metadata.name",
					func(o client.Object) []string { return []string{o.GetName()} }).Build()
			s := &scope{Reconciler: &Reconciler{APIReader: api, Namespace: "kubevirt"}}
			got, err := s.external(t.Context())
			if err != nil || (got == nil) != (tc.want == nil) || got != nil && *got != *tc.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

// All exports need the same address, and a request for a kind that the cluster does not have reads the list of all
// kinds.
func TestExternalIsRemembered(t *testing.T) {
	lists, failure := 0, errors.New("not now")
	api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			lists++
			if failure != nil {
				return failure
			}
			if _, isIngresses := list.(*networkingv1.IngressList); !isIngresses {
				return &meta.NoKindMatchError{GroupKind: routeList.GroupKind()}
			}
			return c.List(ctx, list, opts...)
		},
	}).Build()
	r, now := &Reconciler{APIReader: api, Namespace: "kubevirt"}, time.Now()
	for _, step := range []struct {
		after time.Duration
		fails bool
		lists int
		host  string
	}{
		{0, true, 1, ""}, {0, false, 3, ""}, {29 * time.Second, false, 3, ""}, {time.Second, false, 5, ""}, {-time.Minute, false, 7, ""}, {time.Minute, false, 8, "a.example"},
	} {
		now = now.Add(step.after)
		if !step.fails {
			failure = nil
		}
		if step.host != "" {
			if err := api.Create(t.Context(), ingress("i", step.host, "virt-exportproxy")); err != nil {
				t.Fatal(err)
			}
		}
		got, err := (&scope{Reconciler: r, now: now}).external(t.Context())
		host := ""
		if got != nil {
			host = got.Host
		}
		if (err != nil) != step.fails || lists != step.lists || host != step.host {
			t.Errorf("%+v: got %q, %v after %d lists", step, host, err, lists)
		}
	}
}

func TestTokens(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		token, err := newToken()
		if err != nil || len(token) != tokenLength || seen[token] || strings.Trim(token, tokenCharacters) != "" {
			t.Fatalf("got %q, %v", token, err)
		}
		seen[token] = true
	}
}
