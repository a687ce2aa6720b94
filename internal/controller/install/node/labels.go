// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Labels and annotations of a Node, as in KubeVirt.
const (
	SchedulableLabel    = "kubevirt.io/schedulable"
	HeartbeatAnnotation = "kubevirt.io/heartbeat"
	// UnresponsiveAnnotation is set if the agent's Lease has expired: when it was last renewed, in RFC 3339. KubeVirt does
	// not have it.
	UnresponsiveAnnotation = "kubevirt.io/unresponsive-since"
	SkipAnnotation         = "node-labeller.kubevirt.io/skip-node"
	ObsoleteHostModelLabel = "node-labeller.kubevirt.io/obsolete-host-model"

	cpuModelPrefix         = "cpu-model.node.kubevirt.io/"
	cpuModelMigratePrefix  = "cpu-model-migration.node.kubevirt.io/"
	cpuFeaturePrefix       = "cpu-feature.node.kubevirt.io/"
	cpuVendorPrefix        = "cpu-vendor.node.kubevirt.io/"
	machineTypePrefix      = "machine-type.node.kubevirt.io/"
	hostModelPrefix        = "host-model-cpu.node.kubevirt.io/"
	hostModelFeaturePrefix = "host-model-required-features.node.kubevirt.io/"
	hypervPrefix           = "hyperv.node.kubevirt.io/"
)

// ownedPrefixes are the prefixes of the labels that are removed when the agent no longer reports them.
var ownedPrefixes = []string{
	cpuModelPrefix, cpuModelMigratePrefix, cpuFeaturePrefix, cpuVendorPrefix, machineTypePrefix,
	hostModelPrefix, hostModelFeaturePrefix, hypervPrefix, ObsoleteHostModelLabel, v1.CPUManager, v1.RealtimeLabel,
}

// A report comes from a node, which may be hostile. These caps limit the size of a Node object for the API server and
// all watchers of Nodes. A current CPU has about 100 models and 250 features.
const (
	maxReport   = 256 << 10
	maxPerGroup = 512
)

// Report reads an agent's report.
func Report(cm *corev1.ConfigMap) (*agentapi.Capabilities, error) {
	raw, ok := cm.Data[agentapi.CapabilitiesKey]
	if !ok {
		return nil, fmt.Errorf("ConfigMap %s/%s has no key %q", cm.Namespace, cm.Name, agentapi.CapabilitiesKey)
	}
	if len(raw) > maxReport {
		return nil, fmt.Errorf("ConfigMap %s/%s: report of %d bytes is larger than %d", cm.Namespace, cm.Name, len(raw),
			maxReport)
	}
	report := &agentapi.Capabilities{}
	if err := json.Unmarshal([]byte(raw), report); err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s: report is not valid: %w", cm.Namespace, cm.Name, err)
	}
	return report, nil
}

// Labels returns the labels of a Node from its agent's report. Entries that make no valid label are left out and named
// in the error; the other labels are returned even then.
func Labels(report *agentapi.Capabilities, obsolete map[string]bool) (map[string]string, error) {
	b := labelSet{labels: map[string]string{}}
	current := func(models []string) []string {
		return slices.DeleteFunc(slices.Clone(models), func(m string) bool { return obsolete[m] })
	}
	b.add(cpuModelPrefix, current(report.CPUModels))
	// A guest with host-model has the model of its first node, without the features that the node lacks: a target needs
	// the remaining features, and to know the model.
	b.add(cpuModelMigratePrefix, current(append(report.KnownCPUModels, report.CPUModels...)))
	b.add(cpuFeaturePrefix, report.CPUFeatures)
	b.add(machineTypePrefix, report.MachineTypes)
	b.add(hostModelFeaturePrefix, report.HostModelFeatures)
	b.add(hypervPrefix, report.HypervFeatures)
	// As in KubeVirt, the first label is always set and the second only if true.
	b.labels[v1.CPUManager] = strconv.FormatBool(report.CPUManager)
	if report.Realtime {
		b.labels[v1.RealtimeLabel] = "true"
	}
	b.addOne(cpuVendorPrefix, report.Vendor)
	b.addOne(hostModelPrefix, report.HostModel)
	if obsolete[report.HostModel] {
		b.labels[ObsoleteHostModelLabel] = "true"
	} else {
		b.addOne(cpuModelMigratePrefix, report.HostModel)
	}
	return b.labels, errors.Join(b.errs...)
}

type labelSet struct {
	labels map[string]string
	errs   []error
}

func (b *labelSet) add(prefix string, names []string) {
	if len(names) > maxPerGroup {
		b.errs = append(b.errs, fmt.Errorf("%d entries for labels %s*, only %d are used", len(names), prefix, maxPerGroup))
		names = names[:maxPerGroup]
	}
	for _, name := range names {
		b.addOne(prefix, name)
	}
}

func (b *labelSet) addOne(prefix, name string) {
	if name == "" {
		return
	}
	key := prefix + name
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		b.errs = append(b.errs, fmt.Errorf("%.80q makes no label: %s", key, strings.Join(problems, "; ")))
		return
	}
	b.labels[key] = "true"
}

// owned reports whether Labels may return a label.
func owned(key string) bool {
	return slices.ContainsFunc(ownedPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}
