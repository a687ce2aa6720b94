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
	"github.com/vireo-project/vireo/internal/controller/install/node"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var (
	authorityOverdue = metrics.DescribeOwn("authority_renewal_overdue",
		"1 for each authority that has no successor although half of its overlap has passed, that cannot sign or that is missing; 0 for others.", "secret")
	silentGuests = metrics.DescribeOwn("node_silent_agent_vmis",
		"For each node with VMIs: how many it has if its virt-handler does not renew its Lease, or 0 if it does.", "node")
)

// collectAuthorities reports which authorities were not renewed in time. It reads their Secrets and not the status of
// the KubeVirt object, because the reconciler of that object may be what fails. A missing Secret is reported only if
// there is a KubeVirt object that installs it.
func collectAuthorities(o *objects, controller string, now time.Time, to chan<- prometheus.Metric) {
	secrets := map[string]*corev1.Secret{}
	for i := range o.secrets.Items {
		secrets[o.secrets.Items[i].Name] = &o.secrets.Items[i]
	}
	active := clusterconfig.Active(o.kubevirts.Items)
	installed := active != nil && active.DeletionTimestamp == nil
	report := func(name string, read func(data map[string][]byte) certificate.Authority) {
		// Data that cannot be read counts as missing; the authority then has no expiry.
		authority := certificate.Authority{}
		if secret := secrets[name]; secret != nil {
			authority = read(secret.Data)
		} else if !installed {
			return
		}
		end, overdue := authority.End(now, o.config.Certificates)
		to <- metrics.Gauge(authorityOverdue, metrics.Bool(overdue || end.IsZero()), name)
	}
	for _, role := range certificate.Authorities() {
		report(role.AuthoritySecret(), func(data map[string][]byte) certificate.Authority {
			authority, _ := certificate.AuthorityFrom(role, data)
			return authority
		})
	}
	report(controller, func(data map[string][]byte) certificate.Authority {
		webhooks, _ := certificate.WebhooksFrom(data)
		return webhooks.Authority()
	})
}

// collectSilence reports the nodes whose guests are not observed.
func collectSilence(o *objects, now time.Time, to chan<- prometheus.Metric) {
	guests := map[string]int{}
	for i := range o.vmis.Items {
		vmi := &o.vmis.Items[i]
		if vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Live && vmi.Status.NodeName != "" {
			guests[vmi.Status.NodeName]++
		}
	}
	for i := range o.nodes.Items {
		n, ok := guests[o.nodes.Items[i].Name]
		if !ok {
			continue
		}
		if silent, _ := node.Silent(&o.nodes.Items[i].ObjectMeta, now); !silent {
			n = 0
		}
		to <- metrics.Gauge(silentGuests, float64(n), o.nodes.Items[i].Name)
	}
}

// nodeList returns an empty list of the metadata of Nodes, which is all that the cache has.
func nodeList() metav1.PartialObjectMetadataList {
	list := metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	return list
}
