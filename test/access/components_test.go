// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package access

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/apiserver/subresource"
)

// Service accounts of virt-api, virt-handler, virt-broker and virt-exportproxy.
const (
	apiAccount    = "system:serviceaccount:kubevirt:kubevirt-apiserver"
	agentAccount  = "system:serviceaccount:kubevirt:kubevirt-handler"
	brokerAccount = "system:serviceaccount:kubevirt:kubevirt-broker"
	proxyAccount  = "system:serviceaccount:kubevirt:kubevirt-exportproxy"
)

// TestRightsOfComponents checks requests that an attacker with a stolen token would send.
func TestRightsOfComponents(t *testing.T) {
	for _, file := range []string{"virt-api.yaml", "virt-handler.yaml", "virt-broker.yaml", "virt-exportproxy.yaml"} {
		if err := create(t.Context(), filepath.Join("rbac", file)); err != nil {
			t.Fatal(err)
		}
	}
	const certificates = "certificates.k8s.io"
	for _, q := range []struct {
		account, verbs, group, resource, where string
		may                                    bool
	}{
		{apiAccount, "get patch", "kubevirt.io", "virtualmachines", namespace, true},
		{apiAccount, "patch", "kubevirt.io", "virtualmachines/status", namespace, true},
		{apiAccount, "get patch", "kubevirt.io", "virtualmachineinstances", namespace, true},
		{apiAccount, "create", "kubevirt.io", "virtualmachineinstancemigrations", namespace, true},
		{apiAccount, "list", "", "pods", "kubevirt", true},
		{apiAccount, "get", "", "nodes", "", true},
		{apiAccount, "create", "authorization.k8s.io", "subjectaccessreviews", "", true},
		{apiAccount, "create list watch", certificates, "certificatesigningrequests", "", true},

		{apiAccount, "get list watch", "", "secrets", namespace, false},
		{apiAccount, "get list watch", "", "secrets", "kubevirt", false},
		{apiAccount, "get list watch create patch delete", "", "pods", namespace, false},
		{apiAccount, "create", "", "pods/exec", "kubevirt", false},
		{apiAccount, "create delete deletecollection list", "kubevirt.io", "virtualmachines", namespace, false},
		{apiAccount, "create delete deletecollection list", "kubevirt.io", "virtualmachineinstances", namespace, false},
		{apiAccount, "list watch create update patch delete", "", "nodes", "", false},
		{apiAccount, "impersonate", "", "users", "", false},
		{apiAccount, "update", certificates, "certificatesigningrequests/approval", "", false},
		{apiAccount, "approve sign", certificates, "signers", "", false},
		{apiAccount, "update patch", "", "configmaps", "kubevirt", false},

		{agentAccount, "create list watch", certificates, "certificatesigningrequests", "", true},
		{agentAccount, "update", certificates, "certificatesigningrequests/approval", "", false},
		{agentAccount, "update", certificates, "certificatesigningrequests/status", "", false},
		{agentAccount, "approve sign", certificates, "signers", "", false},
		{agentAccount, "get list watch", "", "secrets", "kubevirt", false},
		{agentAccount, "get list watch", "", "secrets", namespace, false},
		{agentAccount, "get", subresource.GroupName, "virtualmachineinstances/console", namespace, false},

		// Its Pods have no token, and its account nothing to gain with one.
		{brokerAccount, "get list watch create update patch delete", "", "pods", "kubevirt", false},
		{brokerAccount, "get list watch", "", "secrets", "kubevirt", false},
		{brokerAccount, "get list watch update patch", "", "nodes", "", false},
		{brokerAccount, "get list watch", "kubevirt.io", "virtualmachineinstances", namespace, false},
		// As in KubeVirt, every user may get and list KubeVirt objects.
		{brokerAccount, "watch create update patch delete", "kubevirt.io", "kubevirts", "kubevirt", false},
		{brokerAccount, "create list watch", certificates, "certificatesigningrequests", "", false},

		{proxyAccount, "list watch", "export.kubevirt.io", "virtualmachineexports", namespace, true},
		{proxyAccount, "create list watch", certificates, "certificatesigningrequests", "", true},
		{proxyAccount, "get create update patch delete", "export.kubevirt.io", "virtualmachineexports", namespace, false},
		{proxyAccount, "update patch", "export.kubevirt.io", "virtualmachineexports/status", namespace, false},
		{proxyAccount, "get list watch", "", "secrets", namespace, false},
		{proxyAccount, "get list watch", "", "secrets", "kubevirt", false},
		{proxyAccount, "get list watch create delete", "", "pods", namespace, false},
		{proxyAccount, "create", "", "pods/portforward", namespace, false},
		{proxyAccount, "get list watch", "", "persistentvolumeclaims", namespace, false},
		{proxyAccount, "get list", "kubevirt.io", "virtualmachines", namespace, false},
		{proxyAccount, "update", certificates, "certificatesigningrequests/approval", "", false},
		{proxyAccount, "approve sign", certificates, "signers", "", false},
	} {
		for verb := range strings.FieldsSeq(q.verbs) {
			if may(t, q.account, verb, q.group, q.resource, q.where) != q.may {
				t.Errorf("%s: %s %s in %q: want %t", q.account, verb, q.resource, q.where, q.may)
			}
		}
	}
}

// csrPEM is a valid request, since the API server validates it. Its private key was not kept.
const csrPEM = `-----BEGIN CERTIFICATE REQUEST-----
MIHJMHICAQAwEDEOMAwGA1UEAwwFYWRtaW4wWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAAToHbl6FU+jGG1h7BPF5ITGUf8Pb7+zkaVMRjXM0E05JfZSKDlF+YYX/AQq
GvYo7RV6vI/kJrdbCC/DHNJ6z+c8oAAwCgYIKoZIzj0EAwIDRwAwRAIgMuAB9Uor
2XhyjuB79lw++lMg+vd4eeBqkk91NNDw3uQCIEY+wya7nsdalWVmgC0cauET6/gE
P2ox2yIk9VQToeKH
-----END CERTIFICATE REQUEST-----
`

// TestSignersOfComponents checks the policy for CertificateSigningRequests, as users whom RBAC allows everything.
func TestSignersOfComponents(t *testing.T) {
	if err := create(t.Context(), filepath.Join("admission", "certificate-requests.yaml")); err != nil {
		t.Fatal(err)
	}
	const admins, ours = "kubernetes.io/kube-apiserver-client", "kubevirt.io/virt-handler-serving"
	request := func(user, signer string) error {
		return as(t, user, "system:masters").Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: signer, Request: []byte(csrPEM), Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		})
	}
	for deadline := time.Now().Add(timeout); request(agentAccount, admins) == nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy is not effective")
		}
	}
	for _, account := range []string{agentAccount, apiAccount, proxyAccount} {
		if err := request(account, admins); err == nil || !strings.Contains(err.Error(), "kubevirt-certificate-requests") {
			t.Errorf("%s: got %v, want the policy's error", account, err)
		}
		if err := request(account, ours); err != nil {
			t.Errorf("%s: %v", account, err)
		}
	}
	// The policy does not concern other users, even with similar names.
	for _, user := range []string{"root", "system:serviceaccount:team:kubevirt-handler"} {
		if err := request(user, admins); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
}

// TestEveryVerbIsInARole checks that every verb of the aggregated API is in a role for users.
func TestEveryVerbIsInARole(t *testing.T) {
	// In none of KubeVirt's roles: for cluster administrators only.
	special := map[string]bool{
		"virtualmachineinstances/vsock": true,
		"start-cluster-profiler":        true, "stop-cluster-profiler": true, "dump-cluster-profiler": true,
		// Needs no role.
		"healthz": true,
	}
	for _, v := range (&subresource.API{}).Verbs(nil) {
		verb, where := "get", namespace
		if v.Method == http.MethodPut {
			verb = "update"
		}
		if v.Resource == "" && !v.Namespaced {
			where = ""
		}
		allowed := may(t, "admin", verb, subresource.GroupName, v.RBACName(), where) ||
			may(t, "migrator", verb, subresource.GroupName, v.RBACName(), where)
		if allowed == special[v.RBACName()] {
			t.Errorf("%s %s: in a role of users: %t. Add it to config/rbac/users.yaml, or to the verbs of this test that are in none: "+
				"follow \"a new verb\" in docs/architecture.md", verb, v.RBACName(), allowed)
		}
	}
}
