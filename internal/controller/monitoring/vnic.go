// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
)

var vnicLabels = []string{"name", "namespace", "vnic_name", "binding_type", "network", "binding_name", "model"}

const (
	// podNetwork is KubeVirt's name of the Pod's own network in metrics.
	podNetwork = "pod networking"
	// none is KubeVirt's value for a device without a model and a claim without a mode.
	none = "<none>"
)

func collectVNICs(d *prometheus.Desc, namespace, name string, spec *v1.VirtualMachineInstanceSpec, to chan<- prometheus.Metric) {
	known := map[string]bool{}
	for i := range spec.Domain.Devices.Interfaces {
		in := &spec.Domain.Devices.Interfaces[i]
		network, ok := networkOf(spec, in.Name)
		if !ok || known[in.Name] {
			continue
		}
		known[in.Name] = true
		kind, binding := bindingOf(in)
		model := in.Model
		if model == "" {
			model = none
		}
		to <- metrics.Gauge(d, 1, name, namespace, metrics.Text(in.Name), kind, metrics.Text(network), metrics.Text(binding), metrics.Text(model))
	}
}

func networkOf(spec *v1.VirtualMachineInstanceSpec, name string) (string, bool) {
	i := slices.IndexFunc(spec.Networks, func(n v1.Network) bool { return n.Name == name })
	switch {
	case i < 0:
		return "", false
	case spec.Networks[i].Multus != nil:
		return spec.Networks[i].Multus.NetworkName, true
	case spec.Networks[i].Pod != nil:
		return podNetwork, true
	default:
		return "", false
	}
}

func bindingOf(in *v1.Interface) (kind, name string) {
	const core, plugin = "core", "plugin"
	switch {
	case in.Masquerade != nil:
		return core, "masquerade"
	case in.Bridge != nil:
		return core, "bridge"
	case in.SRIOV != nil:
		return core, "sriov"
	case in.Binding != nil:
		return plugin, in.Binding.Name
	default:
		return "", ""
	}
}
