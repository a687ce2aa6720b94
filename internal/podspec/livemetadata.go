// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LiveMetadata has the keys of annotations and labels that are copied to running objects: from a VM's template to its VMI, and
// from there to the Pod. A key that ends in * is a prefix. The annotations always include those of the descheduler. Source:
// kubevirt/kubevirt pkg/virt-controller/watch/application.go, AddFlags.
type LiveMetadata struct {
	Annotations, Labels []string
}

// deschedulerAnnotations are the annotations that the descheduler reads from running Pods. Source: kubevirt/kubevirt
// pkg/virt-controller/watch/descheduler.
var deschedulerAnnotations = []string{
	"descheduler.alpha.kubernetes.io/evict",
	"descheduler.alpha.kubernetes.io/prefer-no-eviction",
}

// Copy copies the live annotations and labels of an object to another one, and removes those that the first does not have.
func (l LiveMetadata) Copy(to, from *metav1.ObjectMeta) {
	to.Annotations = copyLive(to.Annotations, from.Annotations, l.isAnnotation)
	to.Labels = copyLive(to.Labels, from.Labels, l.isLabel)
}

// Remove removes the live annotations and labels.
func (l LiveMetadata) Remove(from *metav1.ObjectMeta) { l.Copy(from, &metav1.ObjectMeta{}) }

func (l LiveMetadata) isAnnotation(key string) bool {
	return slices.Contains(deschedulerAnnotations, key) || matches(l.Annotations, key)
}

func (l LiveMetadata) isLabel(key string) bool { return matches(l.Labels, key) }

func copyLive(to, from map[string]string, live func(key string) bool) map[string]string {
	for key := range to {
		if _, wanted := from[key]; !wanted && live(key) {
			delete(to, key)
		}
	}
	for key, value := range from {
		if !live(key) {
			continue
		}
		if to == nil {
			to = map[string]string{}
		}
		to[key] = value
	}
	return to
}

func matches(patterns []string, key string) bool {
	return !reserved(key) && slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, found := strings.CutSuffix(pattern, "*"); found {
			return strings.HasPrefix(key, prefix)
		}
		return key == pattern
	})
}

// reservedDomains are domains of keys, including their subdomains, that are never copied. Other programs derive from them the
// owner of a Pod, its networks and the commands to run in it.
var reservedDomains = []string{
	"kubevirt.io", "descheduler.alpha.kubernetes.io", "k8s.v1.cni.cncf.io", "v1.multus-cni.io", "istio.io", "kubectl.kubernetes.io",
	strings.TrimSuffix(preHook, "/"), strings.TrimSuffix(postHook, "/"),
}

// reserved reports whether a key is never copied to a running Pod.
func reserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return key == safeToEvictAnnotation || slices.ContainsFunc(reservedDomains, func(reserved string) bool {
		return domain == reserved || strings.HasSuffix(domain, "."+reserved)
	})
}
