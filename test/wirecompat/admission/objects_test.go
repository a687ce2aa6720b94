// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestPlacement(t *testing.T) {
	nodeTerm := func(r corev1.NodeSelectorRequirement) option {
		return func(s *spec) {
			s.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{r}}}}}}
		}
	}
	nodeName := func(r corev1.NodeSelectorRequirement) option {
		return func(s *spec) {
			nodeTerm(corev1.NodeSelectorRequirement{})(s)
			s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0] =
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{r}}
		}
	}
	spread := func(c corev1.TopologySpreadConstraint) option {
		return func(s *spec) { s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c} }
	}
	dns := func(p corev1.DNSPolicy, c *corev1.PodDNSConfig) option {
		return func(s *spec) { s.DNSPolicy, s.DNSConfig = p, c }
	}
	const terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]."
	const term, name = terms + "matchExpressions[0].", terms + "matchFields[0]."
	decide(t, []testCase{
		{name: "host name", object: vmi(with(func(s *spec) { s.Hostname, s.Subdomain = "web-1", "team.example" }))},
		{name: "host name with a dot", object: vmi(with(func(s *spec) { s.Hostname = "web.1" })), fields: []string{"spec.hostname"},
			says: "does not conform to the kubernetes DNS_LABEL rules"},
		{name: "subdomain with a capital", object: vmi(with(func(s *spec) { s.Subdomain = "Team" })), fields: []string{"spec.subdomain"},
			says: "does not conform to the kubernetes DNS_SUBDOMAIN rules"},
		{name: "node affinity", object: vmi(nodeTerm(corev1.NodeSelectorRequirement{Key: "zone", Operator: "In", Values: []string{"a"}}))},
		{name: "node affinity without values", object: vmi(nodeTerm(corev1.NodeSelectorRequirement{Key: "zone", Operator: "In"})), fields: []string{term + "values"}},
		{name: "node affinity of an unknown kind", object: vmi(nodeTerm(corev1.NodeSelectorRequirement{Key: "zone", Operator: "Near"})), fields: []string{term + "operator"}},
		{name: "node affinity to more than a word", object: vmi(nodeTerm(corev1.NodeSelectorRequirement{Key: "cores", Operator: "Gt", Values: []string{"many"}}))},
		{name: "node affinity to more than two numbers", object: vmi(nodeTerm(corev1.NodeSelectorRequirement{Key: "cores", Operator: "Gt", Values: []string{"1", "2"}})),
			fields: []string{term + "values"}},
		{name: "node by name", object: vmi(nodeName(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n1"}}))},
		{name: "node by two names", object: vmi(nodeName(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "In", Values: []string{"n1", "n2"}})),
			fields: []string{name + "values"}, says: "must be only one value"},
		{name: "node with any name", object: vmi(nodeName(corev1.NodeSelectorRequirement{Key: "metadata.name", Operator: "Exists"})), fields: []string{name + "operator"}},
		{name: "spread", object: vmi(spread(corev1.TopologySpreadConstraint{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: "DoNotSchedule"}))},
		{name: "spread of no skew", object: vmi(spread(corev1.TopologySpreadConstraint{TopologyKey: "zone", WhenUnsatisfiable: "DoNotSchedule"})),
			fields: []string{"spec.topologySpreadConstraints[0].maxSkew"}, says: "must be greater than zero"},
		{name: "spread without a topology", object: vmi(spread(corev1.TopologySpreadConstraint{MaxSkew: 1, WhenUnsatisfiable: "DoNotSchedule"})),
			fields: []string{"spec.topologySpreadConstraints[0].topologyKey"}},
		{name: "DNS", object: vmi(dns(corev1.DNSNone, &corev1.PodDNSConfig{Nameservers: []string{"10.0.0.1"}, Searches: []string{"example.org"}}))},
		{name: "unknown DNS policy", object: vmi(dns("Mine", nil)), fields: []string{"spec.dnsPolicy"}, says: "DNSPolicy: Mine is not supported, valid values:"},
		{name: "no DNS and no servers", object: vmi(dns(corev1.DNSNone, nil)), fields: []string{"spec.dnsConfig"}, says: "must provide `dnsConfig` when `dnsPolicy` is None"},
		{name: "four name servers", object: vmi(dns("", &corev1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"}})),
			fields: []string{"spec.dnsConfig.nameservers"}, says: "must not have more than 3 nameservers"},
		{name: "name server by name", object: vmi(dns("", &corev1.PodDNSConfig{Nameservers: []string{"dns"}})), fields: []string{"spec.dnsConfig.nameservers[0]"},
			says: "must be valid IP address: dns"},
		{name: "seven search paths", object: vmi(dns("", &corev1.PodDNSConfig{Searches: []string{"a", "b", "c", "d", "e", "f", "g"}})),
			differs: "KubeVirt copied the six of an older Kubernetes; Pods may have 32"},
		{name: "DNS option without a name", object: vmi(dns("", &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{}}})),
			fields: []string{"spec.dnsConfig.options[0].name"}, says: "Option.Name must not be empty"},
		{name: "negative grace period", object: vmi(with(func(s *spec) { s.TerminationGracePeriodSeconds = ptr.To(int64(-1)) })), fields: []string{"spec.terminationGracePeriodSeconds"}},
		{name: "start paused", object: vmi(with(func(s *spec) { s.StartStrategy = ptr.To(v1.StartStrategyPaused) }))},
		{name: "start later", object: vmi(with(func(s *spec) { s.StartStrategy = ptr.To(v1.StartStrategy("Later")) })), fields: []string{"spec.startStrategy"},
			says: "is set with an unrecognized option: Later"},
		{name: "unknown eviction strategy", object: vmi(with(func(s *spec) { s.EvictionStrategy = ptr.To(v1.EvictionStrategy("Fall")) })),
			fields: []string{"spec.evictionStrategy"}, says: "is set with an unrecognized option: Fall"},
	})
}

func TestMachines(t *testing.T) {
	running := func(r *bool, strategy *v1.VirtualMachineRunStrategy) func(*v1.VirtualMachineSpec) {
		return func(s *v1.VirtualMachineSpec) { s.Running, s.RunStrategy = r, strategy }
	}
	always, receiver := v1.RunStrategyAlways, v1.RunStrategyWaitAsReceiver
	label := func(key string) client.Object {
		object := vm()
		object.Spec.Template.ObjectMeta.Labels = map[string]string{key: "x"}
		return object
	}
	annotated := func(key string) client.Object {
		object := vm()
		object.Spec.Template.ObjectMeta.Annotations = map[string]string{key: "x"}
		return object
	}
	decide(t, []testCase{
		{name: "machine", object: vm()},
		{name: "running", object: vmWith(running(ptr.To(true), nil)), says: "spec.running is deprecated, please use spec.runStrategy instead."},
		{name: "running and strategy", object: vmWith(running(ptr.To(true), &always)), fields: []string{"spec"}, says: "Running and RunStrategy are mutually exclusive."},
		{name: "neither", object: vmWith(running(nil, nil)), fields: []string{"spec"}, says: "RunStrategy must be specified"},
		{name: "unknown strategy", object: vmWith(running(nil, ptr.To(v1.VirtualMachineRunStrategy("Sometimes")))), fields: []string{"spec.runStrategy"}},
		{name: "receiver", config: gates("DecentralizedLiveMigration"), object: vmWith(running(nil, &receiver))},
		{name: "receiver without the gate", object: vmWith(running(nil, &receiver)), fields: []string{"spec.runStrategy"},
			says: "DecentralizedLiveMigration feature gate is not enabled in kubevirt resource"},
		{name: "label of its author", object: label("team")},
		{name: "reserved label", object: label(v1.NodeNameLabel), fields: []string{"spec.template.metadata.labels[kubevirt.io/nodeName]"},
			says: "creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited"},
		{name: "reserved label by the controller", by: controller, object: label(v1.NodeNameLabel), fields: []string{"spec.template.metadata.labels[kubevirt.io/nodeName]"},
			differs: "KubeVirt trusts its controller, which writes what a tenant has put in the patches of a restore"},
		{name: "Ignition without the gate", object: annotated(v1.IgnitionAnnotation), fields: []string{"spec.template.metadata.annotations[kubevirt.io/ignitiondata]"},
			says: "ExperimentalIgnitionSupport feature gate is not enabled in kubevirt-config"},
		{name: "Ignition", config: gates("ExperimentalIgnitionSupport"), object: annotated(v1.IgnitionAnnotation)},
		{name: "changed template", object: vm(), change: func(o client.Object) { o.(*v1.VirtualMachine).Spec.Template.Spec.Hostname = "web" }},
		{name: "changed template with a fault", object: vm(), change: func(o client.Object) { o.(*v1.VirtualMachine).Spec.Template.Spec.Hostname = "W" },
			fields: []string{"spec.template.spec.hostname"}},
	})
}

func TestInstancesChange(t *testing.T) {
	label := func(key string) func(client.Object) {
		return func(o client.Object) { o.SetLabels(map[string]string{key: "x"}) }
	}
	grace := func(o client.Object) {
		o.(*v1.VirtualMachineInstance).Spec.TerminationGracePeriodSeconds = ptr.To(int64(5))
	}
	decide(t, []testCase{
		{name: "spec", object: vmi(), change: grace, fields: []string{"spec"}, says: "update of VMI object is restricted"},
		{name: "spec by the controller", by: controller, object: vmi(), change: grace},
		{name: "label", object: vmi(), change: label("team")},
		{name: "label of the node", object: vmi(), change: label(v1.NodeNameLabel), fields: []string{"metadata.labels[kubevirt.io/nodeName]"},
			says: "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited"},
		{name: "label of its maker", object: vmi(), change: label(v1.CreatedByLabel), fields: []string{"metadata.labels[kubevirt.io/created-by]"}},
		{name: "label of the node by the controller", by: controller, object: vmi(), change: label(v1.NodeNameLabel)},
		{name: "other label of ours", object: vmi(), change: label("kubevirt.io/size")},
		{name: "annotation", object: vmi(), change: func(o client.Object) { o.SetAnnotations(map[string]string{"a": "b"}) }},
		{name: "status through the object", object: vmi(), change: func(o client.Object) { o.(*v1.VirtualMachineInstance).Status.Phase = v1.Running }},
	})
}

func TestKubeVirt(t *testing.T) {
	kubeVirt := func(change func(*v1.KubeVirtSpec)) client.Object {
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "kv", Namespace: "kubevirt"}}
		change(&kv.Spec)
		return kv
	}
	configured := func(c v1.KubeVirtConfiguration) client.Object {
		return kubeVirt(func(s *v1.KubeVirtSpec) { s.Configuration = c })
	}
	signed := func(c v1.KubeVirtSelfSignConfiguration) client.Object {
		return kubeVirt(func(s *v1.KubeVirtSpec) { s.CertificateRotationStrategy.SelfSigned = &c })
	}
	hours := func(n int) *metav1.Duration { return &metav1.Duration{Duration: time.Duration(n) * time.Hour} }
	const certificates = "spec.certificateRotateStrategy.selfSigned"
	decide(t, []testCase{
		{name: "nothing", object: kubeVirt(func(*v1.KubeVirtSpec) {})},
		{name: "unknown gate", object: configured(gates("Typo")), says: "feature gate Typo is not known"},
		{name: "gate that is always on", object: configured(gates("LiveMigration")), says: "feature gate LiveMigration is deprecated, therefore it can be safely removed and is redundant"},
		{name: "discontinued gate", object: configured(gates("Macvtap")), says: "feature gate Macvtap was discontinued"},
		{name: "gate that nothing implements", object: configured(gates("IOMMUFD")), says: "feature gate IOMMUFD has no effect"},
		{name: "gate on both lists", object: configured(v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{
			FeatureGates: []string{"HostDisk"}, DisabledFeatureGates: []string{"HostDisk"}}}),
			fields: []string{"spec.configuration.developerConfiguration.featureGates"},
			says:   `feature gate "HostDisk" exists on both "FeatureGates" and "DisabledFeatureGates"`},
		{name: "machine type", object: configured(v1.KubeVirtConfiguration{MachineType: "q35"}), says: "spec.configuration.machineType is deprecated"},
		{name: "no replicas", object: kubeVirt(func(s *v1.KubeVirtSpec) { s.Infra = &v1.ComponentConfig{Replicas: ptr.To(uint8(0))} }),
			fields: []string{"spec.infra.replicas"}, says: "infra replica count can't be 0"},
		{name: "patch that is no JSON", object: kubeVirt(func(s *v1.KubeVirtSpec) {
			s.CustomizeComponents.Patches = []v1.CustomizeComponentsPatch{{ResourceName: "a", ResourceType: "b", Patch: "{",
				Type: "json"}}
		}), fields: []string{"spec.customizeComponents.patches[0].patch"}, says: "is not valid JSON"},
		{name: "overhead below one", object: configured(v1.KubeVirtConfiguration{AdditionalGuestMemoryOverheadRatio: ptr.To("0.5")}),
			fields: []string{"spec.configuration.additionalGuestMemoryOverheadRatio"}},
		{name: "negative cpu request", object: configured(v1.KubeVirtConfiguration{CPURequest: quantity("-1")}), fields: []string{"spec.configuration.cpuRequest"},
			differs: "KubeVirt takes it and no launcher Pod can be made"},
		{name: "renewal after the end", object: signed(v1.KubeVirtSelfSignConfiguration{CA: &v1.CertConfig{Duration: hours(10), RenewBefore: hours(12)}}),
			fields: []string{certificates + ".ca.renewBefore", certificates + ".server.duration"},
			says:   "RenewBefore cannot exceed Duration"},
		{name: "renewal at once", object: signed(v1.KubeVirtSelfSignConfiguration{Server: &v1.CertConfig{Duration: hours(10), RenewBefore: hours(10)}}),
			says: "a fifth of its duration is used"},
		{name: "certificate that outlives its CA", object: signed(v1.KubeVirtSelfSignConfiguration{Server: &v1.CertConfig{Duration: hours(1000)}}),
			fields: []string{certificates + ".server.duration"}, says: "Certificate duration cannot exceed CA"},
		{name: "lifetimes old and new", object: signed(v1.KubeVirtSelfSignConfiguration{CARotateInterval: hours(100), CA: &v1.CertConfig{Duration: hours(100)}}),
			fields: []string{certificates}, says: "are deprecated and conflict with CertConfig defined rotation parameters"},
		{name: "ciphers of TLS 1.3", object: configured(v1.KubeVirtConfiguration{TLSConfiguration: &v1.TLSConfiguration{MinTLSVersion: "VersionTLS13", Ciphers: []string{"a"}}}),
			fields: []string{"spec.configuration.tlsConfiguration.ciphers"}, says: "You cannot specify ciphers when"},
		{name: "unknown cipher", object: configured(v1.KubeVirtConfiguration{TLSConfiguration: &v1.TLSConfiguration{MinTLSVersion: "VersionTLS12", Ciphers: []string{"ROT13"}}}),
			fields: []string{"spec.configuration.tlsConfiguration.ciphers[0]"}, says: "ROT13 is not a valid cipher"},
		{name: "profile that is missing", object: configured(v1.KubeVirtConfiguration{SeccompConfiguration: &v1.SeccompConfiguration{
			VirtualMachineInstanceProfile: &v1.VirtualMachineInstanceProfile{}}}),
			fields: []string{"spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile"},
			says:   "needs to be set"},
		{name: "selector of an unknown kind", object: configured(v1.KubeVirtConfiguration{AutoCPULimitNamespaceLabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}}),
			fields:  []string{"spec.configuration.autoCPULimitNamespaceLabelSelector.matchExpressions[0].operator"},
			differs: "KubeVirt takes it and matches nothing"},
	})
}
