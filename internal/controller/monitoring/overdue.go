// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/controller/node"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var (
	authorityOverdue = metrics.DescribeOwn("authority_renewal_overdue",
		"1 for each authority that has no successor although half of its overlap has passed, or that cannot sign; 0 for others.", "secret")
	silentGuests = metrics.DescribeOwn("node_silent_agent_vmis",
		"For each node with VMIs: how many it has if its virt-handler does not renew its Lease, or 0 if it does.", "node")
)

// collectAuthorities reports which authorities were not renewed in time. It depends on their Secrets and not on the KubeVirt object,
// whose reconciler may be what does not work.
func collectAuthorities(secrets []corev1.Secret, lifetimes clusterconfig.Certificates, controller string, now time.Time, to chan<- prometheus.Metric) {
	roles := map[string]certificate.Role{}
	for _, role := range certificate.Roles() {
		roles[role.AuthoritySecret()] = role
	}
	for i := range secrets {
		secret := &secrets[i]
		var authority certificate.Authority
		if role, is := roles[secret.Name]; is {
			// What cannot be read is missing, and then the authority has no end.
			authority, _ = certificate.AuthorityFrom(role, secret.Data)
		} else if secret.Name == controller {
			webhooks, _ := certificate.WebhooksFrom(secret.Data)
			authority = webhooks.Authority()
		} else {
			continue
		}
		end, overdue := authority.End(now, lifetimes)
		to <- metrics.Gauge(authorityOverdue, metrics.Bool(overdue || end.IsZero()), secret.Name)
	}
}

// collectSilence reports the nodes whose guests are not observed.
func collectSilence(w *world, now time.Time, to chan<- prometheus.Metric) {
	guests := map[string]int{}
	for i := range w.instances.Items {
		vmi := &w.instances.Items[i]
		if vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Live && vmi.Status.NodeName != "" {
			guests[vmi.Status.NodeName]++
		}
	}
	for i := range w.nodes.Items {
		n, has := guests[w.nodes.Items[i].Name]
		if !has {
			continue
		}
		if silent, _ := node.Silent(&w.nodes.Items[i].ObjectMeta, now); !silent {
			n = 0
		}
		to <- metrics.Gauge(silentGuests, float64(n), w.nodes.Items[i].Name)
	}
}

// nodeList returns an empty list of the metadata of Nodes, which is all that the cache has.
func nodeList() metav1.PartialObjectMetadataList {
	list := metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	return list
}
