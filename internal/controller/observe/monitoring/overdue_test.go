// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/install/node"
)

// authority is the Secret of an authority that was made at noon.
func authority(t *testing.T, role certificate.Role) corev1.Secret {
	t.Helper()
	empty, err := certificate.AuthorityFrom(role, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, _, _, err := empty.Advance(noon, clusterconfig.Default().Certificates)
	if err != nil {
		t.Fatal(err)
	}
	data, err := made.Data()
	if err != nil {
		t.Fatal(err)
	}
	return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: role.AuthoritySecret()}, Data: data}
}

func TestAuthoritiesThatAreNotRenewed(t *testing.T) {
	lifetimes := clusterconfig.Default().Certificates
	webhooks, _, err := certificate.Webhooks{}.Renew(
		certificate.Renewal{Now: noon, Lifetimes: lifetimes, Names: []string{"webhook"}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := webhooks.Data()
	if err != nil {
		t.Fatal(err)
	}
	secrets := []corev1.Secret{
		authority(t, certificate.APIClient),
		{ObjectMeta: metav1.ObjectMeta{Name: "webhooks"}, Data: data},
		{ObjectMeta: metav1.ObjectMeta{Name: certificate.APIServing.AuthoritySecret()}, Data: map[string][]byte{"tls.crt": []byte("broken")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "of others"}, Data: data},
	}
	const broken = "\nvireo_authority_renewal_overdue{secret=\"kubevirt-virt-api-serving-ca\"} 1\n"
	const client, hooks = "vireo_authority_renewal_overdue{secret=\"kubevirt-virt-api-client-ca\"} ",
		"vireo_authority_renewal_overdue{secret=\"webhooks\"} "
	half := lifetimes.CADuration - lifetimes.CARenewBefore/2
	for after, want := range map[time.Duration]string{
		0: client + "0" + broken + hooks + "0", half - time.Minute: client + "0" + broken + hooks + "0",
		half + time.Minute: client + "1" + broken + hooks + "1",
	} {
		c := collector(&cached{secrets: secrets})
		c.WebhookSecret, c.Clock = "webhooks", clocktesting.NewFakePassiveClock(noon.Add(after))
		if diff := cmp.Diff(want, samples(t, c, "vireo_authority_renewal_overdue")); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", after, diff)
		}
	}
}

// Authorities are missing from when a KubeVirt object is created until it is deleted: before and after that, none are
// to be there.
func TestMissingAuthorities(t *testing.T) {
	object := v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "kubevirt"}}
	removed := object
	removed.DeletionTimestamp = &metav1.Time{Time: noon}
	const there = "vireo_authority_renewal_overdue{secret=\"kubevirt-virt-api-client-ca\"} 0"
	missing := there
	for _, name := range []string{
		"virt-api-serving-ca", "virt-exporter-ca", "virt-exportproxy-serving-ca", "virt-handler-backup-ca",
		"virt-handler-migration-ca", "virt-handler-serving-ca",
	} {
		missing += "\nvireo_authority_renewal_overdue{secret=\"kubevirt-" + name + "\"} 1"
	}
	missing += "\nvireo_authority_renewal_overdue{secret=\"webhooks\"} 1"
	for name, tc := range map[string]struct {
		kubevirts []v1.KubeVirt
		want      string
	}{
		"nothing is installed":        {nil, there},
		"installed":                   {[]v1.KubeVirt{object}, missing},
		"an object elsewhere":         {[]v1.KubeVirt{{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "kubevirt"}}}, there},
		"it is removed":               {[]v1.KubeVirt{removed}, there},
		"a second object is inactive": {[]v1.KubeVirt{removed, {ObjectMeta: metav1.ObjectMeta{Namespace: "kubevirt", Name: "second"}}}, there},
	} {
		c := collector(&cached{secrets: []corev1.Secret{authority(t, certificate.APIClient)}, kubevirts: tc.kubevirts})
		c.Namespace, c.WebhookSecret, c.Clock = "kubevirt", "webhooks", clocktesting.NewFakePassiveClock(noon)
		if diff := cmp.Diff(tc.want, samples(t, c, "vireo_authority_renewal_overdue")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNodesWithASilentAgent(t *testing.T) {
	host := func(name string, annotations map[string]string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	}
	on := func(name string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = name }
	}
	silent := map[string]string{node.UnresponsiveAnnotation: noon.Format(time.RFC3339)}
	c := collector(&cached{
		nodes: []metav1.PartialObjectMetadata{host("alive", nil), host("silent", silent), host("empty", silent),
			host("ended", silent)},
		vmis: []v1.VirtualMachineInstance{
			instance("a", v1.Running, on("alive")), instance("b", v1.Running, on("silent")),
			instance("c", v1.Scheduled, on("silent")),
			instance("d", v1.Succeeded, on("silent")), instance("e", v1.Failed, on("ended")),
			instance("f", v1.Running, on("removed")), instance("g", v1.Scheduling, on("")),
		},
	})
	want := "vireo_node_silent_agent_vmis{node=\"alive\"} 0\nvireo_node_silent_agent_vmis{node=\"silent\"} 2"
	if diff := cmp.Diff(want, samples(t, c, "vireo_node_silent_agent_vmis")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
