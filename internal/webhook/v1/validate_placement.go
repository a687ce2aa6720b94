// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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

func checkArchitecture(c *check) {
	arch := c.spec.Architecture
	if arch == "" || arch == c.config.DefaultArchitecture || arch == runtime.GOARCH || c.config.IsEnabled(gateMultiArch) {
		return
	}
	c.forbidden(c.at("architecture"),
		"multi-architecture feature gate is not enabled in kubevirt-config, invalid entry %s. "+
			"Leave it out, or use %s.", c.at("architecture"), runtime.GOARCH)
}

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
