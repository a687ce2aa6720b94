// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"

	"github.com/vireo-project/vireo/internal/outcome"
)

func TestStreamAddress(t *testing.T) {
	const attached = `[{"name":"pods","interface":"eth0","ips":["10.0.0.1"],"default":true},{"name":"kubevirt/wire","interface":"migration0","ips":["192.0.2.7"]}]`
	for name, tc := range map[string]struct {
		network v1.MigrationNetworkType
		status  string
		want    string
	}{
		"network of Pods":                      {v1.Pod, attached, "10.0.0.1"},
		"no network type":                      {"", "", "10.0.0.1"},
		"migration network":                    {v1.Migration, attached, "192.0.2.7"},
		"migration network without an address": {v1.Migration, `[{"interface":"eth0","ips":["10.0.0.1"]}]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{"k8s.v1.cni.cncf.io/network-status": tc.status}}}
			pod.Status.PodIP = "10.0.0.1"
			got, err := streamAddress(pod, &v1.VirtualMachineInstanceMigrationState{MigrationNetworkType: tc.network})
			var terminal *outcome.Terminal
			if got != tc.want || errors.As(err, &terminal) != (tc.want == "") {
				t.Errorf("got %q and %v, want %q", got, err, tc.want)
			}
		})
	}
}
