// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Limits of a Pod's DNS configuration (k8s.io/kubernetes pkg/apis/core/validation).
const (
	maxDNSNameservers = 3
	maxDNSSearchPaths = 32
	maxDNSSearchChars = 2048
)

var (
	dnsPolicies = []corev1.DNSPolicy{
		"", corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone,
	}
	evictionStrategies = []v1.EvictionStrategy{
		v1.EvictionStrategyNone, v1.EvictionStrategyLiveMigrate,
		v1.EvictionStrategyLiveMigrateIfPossible, v1.EvictionStrategyExternal,
	}
)

func checkHostname(c *check) {
	if host := c.spec.Hostname; host != "" {
		if msgs := validation.IsDNS1123Label(host); len(msgs) > 0 {
			c.invalid(c.at("hostname"), host, "%s does not conform to the kubernetes DNS_LABEL rules : %s",
				c.at("hostname"), strings.Join(msgs, ", "))
		}
	}
	if domain := c.spec.Subdomain; domain != "" {
		if msgs := validation.IsDNS1123Subdomain(domain); len(msgs) > 0 {
			c.invalid(c.at("subdomain"), domain, "%s does not conform to the kubernetes DNS_SUBDOMAIN rules : %s",
				c.at("subdomain"), strings.Join(msgs, ", "))
		}
	}
}

func checkDNS(c *check) {
	policy, config := c.spec.DNSPolicy, c.spec.DNSConfig
	if !slices.Contains(dnsPolicies, policy) {
		c.invalid(c.at("dnsPolicy"), policy, "DNSPolicy: %s is not supported, valid values: %v", policy, dnsPolicies[1:])
	}
	p := c.at("dnsConfig")
	if config == nil {
		if policy == corev1.DNSNone {
			c.required(p, "must provide `dnsConfig` when `dnsPolicy` is None")
		}
		return
	}
	if policy == corev1.DNSNone && len(config.Nameservers) == 0 {
		c.required(p.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")
	}
	if len(config.Nameservers) > maxDNSNameservers {
		c.invalid(p.Child("nameservers"), config.Nameservers, "must not have more than %d nameservers: %s",
			maxDNSNameservers, config.Nameservers)
	}
	for i, server := range config.Nameservers {
		if netutils.ParseIPSloppy(server) == nil {
			c.invalid(p.Child("nameservers").Index(i), server, "must be valid IP address: %s", server)
		}
	}
	if len(config.Searches) > maxDNSSearchPaths {
		c.invalid(p.Child("searches"), len(config.Searches), "must not have more than %d search paths", maxDNSSearchPaths)
	}
	if n := len(strings.Join(config.Searches, " ")); n > maxDNSSearchChars {
		c.invalid(p.Child("searches"), n, "must not have more than %d characters (including spaces) in the search list",
			maxDNSSearchChars)
	}
	for i, search := range config.Searches {
		for _, msg := range validation.IsDNS1123Subdomain(strings.TrimSuffix(search, ".")) {
			c.invalid(p.Child("searches").Index(i), search, "%s", msg)
		}
	}
	for i, option := range config.Options {
		if option.Name == "" {
			c.required(p.Child("options").Index(i).Child("name"), "Option.Name must not be empty")
		}
	}
}

// checkLifecycle checks the settings for starting, stopping and evicting the guest.
func checkLifecycle(c *check) {
	if grace := c.spec.TerminationGracePeriodSeconds; grace != nil && *grace < 0 {
		c.invalid(c.at("terminationGracePeriodSeconds"), *grace, "%s '%d': must be greater than or equal to 0.",
			c.at("terminationGracePeriodSeconds"), *grace)
	}
	if start := c.spec.StartStrategy; start != nil {
		switch {
		case *start != v1.StartStrategyPaused:
			c.invalid(c.at("startStrategy"), *start, "%s is set with an unrecognized option: %s", c.at("startStrategy"), *start)
		case c.spec.LivenessProbe != nil:
			c.invalid(c.at("startStrategy"), *start,
				"either %s or %s should be provided.Pausing VMI with LivenessProbe is not supported",
				c.at("startStrategy"), c.at("livenessProbe"))
		}
	}
	if evict := c.spec.EvictionStrategy; evict != nil && !slices.Contains(evictionStrategies, *evict) {
		c.invalid(c.at("evictionStrategy"), *evict, "%s is set with an unrecognized option: %s", c.at("evictionStrategy"),
			*evict)
	}
}

func checkProbes(c *check) {
	onPodNetwork := false
	for i := range c.spec.Networks {
		onPodNetwork = onPodNetwork || c.spec.Networks[i].Pod != nil
	}
	// A VM's template with neither networks nor interfaces gets the Pod's network at its start.
	devices := &c.spec.Domain.Devices
	if len(c.spec.Networks) == 0 && len(devices.Interfaces) == 0 && enabled(devices.AutoattachPodInterface) {
		onPodNetwork = true
	}
	c.probe(c.at("readinessProbe"), c.spec.ReadinessProbe, onPodNetwork)
	c.probe(c.at("livenessProbe"), c.spec.LivenessProbe, onPodNetwork)
}

func (c *check) probe(p *field.Path, probe *v1.Probe, onPodNetwork bool) {
	if probe == nil {
		return
	}
	n := 0
	for _, set := range []bool{probe.HTTPGet != nil, probe.TCPSocket != nil, probe.Exec != nil,
		probe.GuestAgentPing != nil} {
		if set {
			n++
		}
	}
	switch {
	case n > 1:
		c.invalid(p, "several handlers", "%s must have exactly one probe type set", p)
	case n == 0:
		c.required(p, "either %s, %s or %s must be set if a %s is specified",
			p.Child("tcpSocket"), p.Child("exec"), p.Child("httpGet"), p)
	}
	if onPodNetwork {
		return
	}
	if probe.HTTPGet != nil {
		c.forbidden(p.Child("httpGet"), "%s is only allowed if the Pod Network is attached", p.Child("httpGet"))
	}
	if probe.TCPSocket != nil {
		c.forbidden(p.Child("tcpSocket"), "%s is only allowed if the Pod Network is attached", p.Child("tcpSocket"))
	}
}

// maxAffinityWeight is the limit of Kubernetes (pkg/apis/core/validation).
const maxAffinityWeight = 100

// checkAffinity rejects affinities that the API server would reject in the launcher Pod.
func checkAffinity(c *check) {
	affinity := c.spec.Affinity
	if affinity == nil {
		return
	}
	p := c.at("affinity")
	if node := affinity.NodeAffinity; node != nil {
		c.nodeAffinity(p.Child("nodeAffinity"), node)
	}
	if pod := affinity.PodAffinity; pod != nil {
		c.podAffinity(p.Child("podAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pod := affinity.PodAntiAffinity; pod != nil {
		c.podAffinity(p.Child("podAntiAffinity"), pod.RequiredDuringSchedulingIgnoredDuringExecution,
			pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (c *check) nodeAffinity(p *field.Path, affinity *corev1.NodeAffinity) {
	required := p.Child("requiredDuringSchedulingIgnoredDuringExecution")
	if selector := affinity.RequiredDuringSchedulingIgnoredDuringExecution; selector != nil {
		if len(selector.NodeSelectorTerms) == 0 {
			c.required(required.Child("nodeSelectorTerms"), "must have at least one node selector term")
		}
		for i := range selector.NodeSelectorTerms {
			c.nodeTerm(required.Child("nodeSelectorTerms").Index(i), &selector.NodeSelectorTerms[i])
		}
	}
	for i := range affinity.PreferredDuringSchedulingIgnoredDuringExecution {
		term, at := &affinity.PreferredDuringSchedulingIgnoredDuringExecution[i],
			p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		c.weight(at.Child("weight"), term.Weight)
		c.nodeTerm(at.Child("preference"), &term.Preference)
	}
}

func (c *check) weight(p *field.Path, weight int32) {
	if weight < 1 || weight > maxAffinityWeight {
		c.invalid(p, weight, "must be in the range 1-%d", maxAffinityWeight)
	}
}

func (c *check) nodeTerm(p *field.Path, term *corev1.NodeSelectorTerm) {
	for i := range term.MatchExpressions {
		c.nodeRequirement(p.Child("matchExpressions").Index(i), &term.MatchExpressions[i])
	}
	for i := range term.MatchFields {
		c.nodeField(p.Child("matchFields").Index(i), &term.MatchFields[i])
	}
}

func (c *check) nodeField(p *field.Path, r *corev1.NodeSelectorRequirement) {
	switch {
	case r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn:
		c.invalid(p.Child("operator"), r.Operator, "not a valid selector operator. Use In or NotIn.")
	case len(r.Values) != 1:
		c.required(p.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
	}
	if r.Key != metav1.ObjectNameField {
		c.invalid(p.Child("key"), r.Key, "not a valid field selector key. Use %s.", metav1.ObjectNameField)
	}
}

func (c *check) nodeRequirement(p *field.Path, r *corev1.NodeSelectorRequirement) {
	for _, msg := range validation.IsQualifiedName(r.Key) {
		c.invalid(p.Child("key"), r.Key, "%s", msg)
	}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			c.required(p.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			c.forbidden(p.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		}
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		// As in KubeVirt, a value that is not a number is accepted. No node matches it, and the scheduler reports why.
		if len(r.Values) != 1 {
			c.required(p.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'")
		}
	default:
		c.invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
	}
}

func (c *check) podAffinity(
	p *field.Path, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm,
) {
	for i := range required {
		c.podTerm(p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i), &required[i])
	}
	for i := range preferred {
		at := p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		c.weight(at.Child("weight"), preferred[i].Weight)
		c.podTerm(at.Child("podAffinityTerm"), &preferred[i].PodAffinityTerm)
	}
}

func (c *check) podTerm(p *field.Path, term *corev1.PodAffinityTerm) {
	c.selector(p.Child("labelSelector"), term.LabelSelector)
	c.selector(p.Child("namespaceSelector"), term.NamespaceSelector)
	for i, namespace := range term.Namespaces {
		for _, msg := range validation.IsDNS1123Label(namespace) {
			c.invalid(p.Child("namespaces").Index(i), namespace, "%s", msg)
		}
	}
	c.topologyKey(p.Child("topologyKey"), term.TopologyKey)
}

func (c *check) selector(p *field.Path, selector *metav1.LabelSelector) {
	c.errs = append(c.errs, metav1validation.ValidateLabelSelector(selector,
		metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: true}, p)...)
}

func (c *check) topologyKey(p *field.Path, key string) {
	if key == "" {
		c.required(p, "can not be empty. Use a label of nodes, such as %s.", corev1.LabelHostname)
		return
	}
	for _, msg := range validation.IsQualifiedName(key) {
		c.invalid(p, key, "%s", msg)
	}
}

func checkTopologySpread(c *check) {
	actions := []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}
	seen := map[string]bool{}
	for i := range c.spec.TopologySpreadConstraints {
		constraint, p := &c.spec.TopologySpreadConstraints[i], c.at("topologySpreadConstraints").Index(i)
		if constraint.MaxSkew <= 0 {
			c.invalid(p.Child("maxSkew"), constraint.MaxSkew, "must be greater than zero")
		}
		c.topologyKey(p.Child("topologyKey"), constraint.TopologyKey)
		if !slices.Contains(actions, constraint.WhenUnsatisfiable) {
			c.errs = append(c.errs, field.NotSupported(p.Child("whenUnsatisfiable"), constraint.WhenUnsatisfiable, actions))
		}
		pair := constraint.TopologyKey + " " + string(constraint.WhenUnsatisfiable)
		if seen[pair] {
			c.errs = append(c.errs, field.Duplicate(p.Child("topologyKey"), constraint.TopologyKey))
		}
		seen[pair] = true
		if constraint.MinDomains != nil && *constraint.MinDomains <= 0 {
			c.invalid(p.Child("minDomains"), *constraint.MinDomains, "must be greater than zero")
		}
		c.selector(p.Child("labelSelector"), constraint.LabelSelector)
	}
}

// checkNetworkClaims checks networks whose device comes from a resource claim.
func checkNetworkClaims(c *check) {
	p := c.at("networks")
	claims, seen := map[string]bool{}, map[string]bool{}
	for i := range c.spec.ResourceClaims {
		claims[c.spec.ResourceClaims[i].Name] = true
	}
	found, multus := false, false
	for i := range c.spec.Networks {
		network := &c.spec.Networks[i]
		multus = multus || network.Multus != nil
		if network.ResourceClaim == nil {
			continue
		}
		found = true
		if !c.config.IsEnabled(gateNetworkDRA) {
			c.forbidden(p.Index(i).Child("resourceClaim"), "%s feature gate is not enabled in kubevirt-config", gateNetworkDRA)
			continue
		}
		c.networkClaim(p.Index(i).Child("resourceClaim"), network.ResourceClaim, claims, seen)
		for j := range c.spec.Domain.Devices.Interfaces {
			if iface := &c.spec.Domain.Devices.Interfaces[j]; iface.Name == network.Name && iface.SRIOV == nil {
				c.invalid(c.devices("interfaces").Index(j), iface.Name, "DRA network %q requires an SR-IOV interface binding",
					iface.Name)
			}
		}
	}
	if found && multus && c.config.IsEnabled(gateNetworkDRA) {
		c.invalid(p, len(c.spec.Networks), "mixing Multus and DRA resourceClaim networks in the same VMI is not supported")
	}
}

func (c *check) networkClaim(p *field.Path, claim *v1.ClaimRequest, claims, seen map[string]bool) {
	name, request := claim.ClaimName, claim.RequestName
	switch {
	case name == "":
		c.required(p.Child("claimName"), "claimName is required for DRA network")
	case request == "":
		c.required(p.Child("requestName"), "requestName is required for DRA network")
	case !claims[name]:
		c.invalid(p.Child("claimName"), name,
			"network references resourceClaim %q which is not defined in spec.resourceClaims", name)
	case seen[name+"/"+request]:
		c.invalid(p, name+"/"+request, "duplicate claimName/requestName combination %q", name+"/"+request)
	}
	seen[name+"/"+request] = true
}
