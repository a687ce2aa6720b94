// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestValidateKubeVirt(t *testing.T) {
	developer := func(d v1.DeveloperConfiguration) v1.KubeVirtSpec {
		return v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{DeveloperConfiguration: &d}}
	}
	for _, tc := range []struct {
		name    string
		spec    v1.KubeVirtSpec
		warning string
		fault   string
	}{
		{"empty", v1.KubeVirtSpec{}, "", ""},
		{"emulation", developer(v1.DeveloperConfiguration{UseEmulation: true, FeatureGates: []string{"HostDisk"}}), "", ""},
		{"gate that is enabled and disabled", developer(v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk"}, DisabledFeatureGates: []string{"HostDisk"}}), "",
			"spec.configuration.developerConfiguration.featureGates: Forbidden: feature gate \"HostDisk\" exists on both \"FeatureGates\" and \"DisabledFeatureGates\""},
		{"unknown gate", developer(v1.DeveloperConfiguration{FeatureGates: []string{"HostDisk", "Hostdisk"}}),
			"featureGates[1]: feature gate Hostdisk is not known", ""},
		{"discontinued gate", developer(v1.DeveloperConfiguration{DisabledFeatureGates: []string{"Passt"}}),
			"disabledFeatureGates[0]: feature gate Passt was discontinued", ""},
		{"unknown strategy", v1.KubeVirtSpec{UninstallStrategy: "Block"}, "spec.uninstallStrategy: \"Block\" is not known", ""},
		{"unimplemented", v1.KubeVirtSpec{SynchronizationPort: "1"}, "spec.synchronizationPort has no effect", ""},
		{"flags", v1.KubeVirtSpec{CustomizeComponents: v1.CustomizeComponents{Flags: &v1.Flags{
			Controller: map[string]string{"v": "3"}, Handler: map[string]string{"v": "3"}}}}, "", ""},
		{"patches", v1.KubeVirtSpec{CustomizeComponents: v1.CustomizeComponents{Patches: []v1.CustomizeComponentsPatch{{Patch: "{}"}}}}, "", ""},
		{"placement of the control plane", v1.KubeVirtSpec{Infra: &v1.ComponentConfig{NodePlacement: &v1.NodePlacement{}}}, "", ""},
		{"placement of the agents", v1.KubeVirtSpec{Workloads: &v1.ComponentConfig{NodePlacement: &v1.NodePlacement{}}}, "", ""},
		{"lifetimes", v1.KubeVirtSpec{CertificateRotationStrategy: v1.KubeVirtCertificateRotateStrategy{
			SelfSigned: &v1.KubeVirtSelfSignConfiguration{
				Server: &v1.CertConfig{Duration: &metav1.Duration{Duration: time.Hour}}}}},
			"", ""},
		{"deprecated machine type", v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{MachineType: "q35"}},
			"spec.configuration.machineType is deprecated, use spec.configuration.architectureConfiguration.amd64.machineType. It wins", ""},
		{"cipher with TLS 1.3", v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{TLSConfiguration: &v1.TLSConfiguration{
			MinTLSVersion: v1.VersionTLS13, Ciphers: []string{"TLS_AES_128_GCM_SHA256"}}}}, "",
			"spec.configuration.tlsConfiguration.ciphers: Forbidden"},
		{"ratio", v1.KubeVirtSpec{Configuration: v1.KubeVirtConfiguration{AdditionalGuestMemoryOverheadRatio: ptr.To("x")}},
			"", "spec.configuration.additionalGuestMemoryOverheadRatio"},
		{"no replicas", v1.KubeVirtSpec{Infra: &v1.ComponentConfig{Replicas: ptr.To(uint8(0))}}, "", "spec.infra.replicas"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			warnings, err := validateWithConfig(&v1.KubeVirt{Spec: tc.spec})
			found := slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, tc.warning) })
			if tc.warning == "" && len(warnings) > 0 || tc.warning != "" && !found {
				t.Errorf("warnings %q, want %q", warnings, tc.warning)
			}
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error %v, want %q", err, tc.fault)
			}
		})
	}
}

func TestTolerationsOfTheComponents(t *testing.T) {
	for name, tc := range map[string]struct {
		toleration corev1.Toleration
		field      string
		fault      string
	}{
		"everything":     {corev1.Toleration{Operator: corev1.TolerationOpExists}, "", ""},
		"no operator":    {corev1.Toleration{Key: "a", Value: "b"}, "", ""},
		"equal":          {corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual, Value: "b", Effect: corev1.TaintEffectNoSchedule}, "", ""},
		"for some time":  {corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(9))}, "", ""},
		"other operator": {corev1.Toleration{Key: "a", Operator: "foo", Value: "b"}, "operator", `"foo": %s.operator in body should be one of [Equal Exists]`},
		"no key":         {corev1.Toleration{Operator: corev1.TolerationOpEqual}, "operator", "operator must be Exists when `key` is empty"},
		"invalid key":    {corev1.Toleration{Key: "a b"}, "key", "name part must consist of"},
		"invalid value":  {corev1.Toleration{Key: "a", Value: "b c"}, "operator", "a valid label must be"},
		"value of any":   {corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Value: "b"}, "operator", "value must be empty when `operator` is 'Exists'"},
		"other effect":   {corev1.Toleration{Key: "a", Effect: "Evict"}, "effect", `supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`},
		"time without eviction": {corev1.Toleration{Key: "a", Effect: corev1.TaintEffectNoSchedule, TolerationSeconds: ptr.To(int64(9))}, "effect",
			"effect must be 'NoExecute' when `tolerationSeconds` is set"},
	} {
		placed := &v1.ComponentConfig{
			NodePlacement: &v1.NodePlacement{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists},
				tc.toleration}}}
		for part, spec := range map[string]v1.KubeVirtSpec{"infra": {Infra: placed}, "workloads": {Workloads: placed}} {
			list := "spec." + part + ".nodePlacement.tolerations"
			_, err := validateWithConfig(&v1.KubeVirt{Spec: spec})
			if tc.fault == "" {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			fault := strings.ReplaceAll(tc.fault, "%s", list)
			if err == nil || !strings.Contains(err.Error(), list+"[1]."+tc.field+":") || !strings.Contains(err.Error(), fault) {
				t.Errorf("%s: %v, want %q", name, err, fault)
			}
		}
	}
}
