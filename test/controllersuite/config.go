// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// FixedConfig is a configuration that does not change.
type FixedConfig struct{ clusterconfig.Config }

// Current returns the configuration.
func (f FixedConfig) Current() clusterconfig.Config { return f.Config }

// Subscribe calls notify once.
func (f FixedConfig) Subscribe(notify func(clusterconfig.Config)) { notify(f.Config) }

// VMIConfig returns the default configuration of an installed cluster, for the reconciler of VMIs.
func VMIConfig() clusterconfig.Config {
	config := clusterconfig.Default()
	config.Images.Launcher = "registry.example/virt-launcher:v1"
	config.DefaultArchitecture, config.KubeVirt = "amd64", "kubevirt"
	return config
}

// TrackingConfig returns the default configuration with selectors of the VMs whose changed blocks are tracked, or nil.
func TrackingConfig(enabled bool, vms, namespaces labels.Selector) clusterconfig.Config {
	config := VMIConfig()
	if enabled {
		config.FeatureGates = clusterconfig.NewFeatureGates([]string{clusterconfig.GateIncrementalBackup}, nil)
	}
	config.ChangedBlockTracking = clusterconfig.TrackedVMs{VirtualMachines: vms, Namespaces: namespaces}
	return config
}

// BackedUp selects the VMs and the namespaces with the label that LabelNamespace sets.
var BackedUp = labels.SelectorFromSet(labels.Set{"backup": "yes"})

// LabelNamespace makes the selector BackedUp select a namespace.
func LabelNamespace(name string) {
	GinkgoHelper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	before := client.MergeFrom(ExpectExists(ns).DeepCopy())
	metav1.SetMetaDataLabel(&ns.ObjectMeta, "backup", "yes")
	Expect(K8sClient.Patch(ctx, ns, before)).To(Succeed())
}
