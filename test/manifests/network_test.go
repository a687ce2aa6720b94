// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// networkPolicy returns the policy of a component.
func networkPolicy(t *testing.T, component string) networkingv1.NetworkPolicySpec {
	t.Helper()
	for _, document := range strings.Split(text(t, "config/network-policy/allow.yaml"), "\n---\n") {
		var policy networkingv1.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(document), &policy); err != nil {
			t.Fatal(err)
		}
		if policy.Spec.PodSelector.MatchLabels[v1.AppLabel] == component {
			return policy.Spec
		}
	}
	t.Fatalf("config/network-policy has no policy for %s", component)
	return networkingv1.NetworkPolicySpec{}
}

// virt-exportproxy connects to addresses that it derives from a client's path.
func TestExportProxyConnectsToExportersOnly(t *testing.T) {
	policy := networkPolicy(t, content.ProxyService)
	if !slices.Contains(policy.PolicyTypes, networkingv1.PolicyTypeEgress) {
		t.Fatal("outgoing connections of virt-exportproxy are not restricted")
	}
	var anywhere []int
	exporters := false
	for _, rule := range policy.Egress {
		if len(rule.Ports) == 0 {
			t.Error("a rule for outgoing connections has no port: it allows all of them")
		}
		var ports []int
		for _, port := range rule.Ports {
			if port.Port == nil || port.EndPort != nil {
				t.Fatal("a rule for outgoing connections allows a range of ports")
			}
			ports = append(ports, port.Port.IntValue())
		}
		if len(rule.To) == 0 {
			anywhere = append(anywhere, ports...)
			continue
		}
		for _, peer := range rule.To {
			want := metav1.LabelSelectorRequirement{Key: export.ServiceLabel, Operator: metav1.LabelSelectorOpExists}
			selects := peer.NamespaceSelector != nil && peer.IPBlock == nil && peer.PodSelector != nil &&
				len(peer.PodSelector.MatchExpressions) == 1 && peer.PodSelector.MatchExpressions[0].String() == want.String()
			if !selects || !slices.Equal(ports, []int{content.Port}) {
				t.Errorf("the rule for %v and the ports %v is not for exporters", peer, ports)
			}
			exporters = true
		}
	}
	if !exporters {
		t.Error("virt-exportproxy may not connect to exporters")
	}
	slices.Sort(anywhere)
	// DNS, and the API server.
	if anywhere = slices.Compact(anywhere); !slices.Equal(anywhere, []int{53, 443, 5353, 6443}) {
		t.Errorf("virt-exportproxy may connect to the ports %v of any address", anywhere)
	}
}

// What has privileges on a node and no network, has none with the policies either.
func TestBrokerConnectsToNothing(t *testing.T) {
	policy := networkPolicy(t, "virt-broker")
	if len(policy.PolicyTypes) != 2 || len(policy.Ingress)+len(policy.Egress) != 0 {
		t.Errorf("the policy of virt-broker allows connections: %+v", policy)
	}
}
