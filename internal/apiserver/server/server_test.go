// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
	"github.com/vireo-project/vireo/test/pki"
)

// Timeouts, long enough for a loaded machine.
const (
	startLimit = time.Minute
	stopLimit  = time.Minute
)

const group = "/apis/subresources.kubevirt.io"

func verbPath(version, name, verb string) string {
	return group + "/" + version + "/namespaces/default/virtualmachines/" + name + "/" + verb
}

func put(user, path, body string) error {
	GinkgoHelper()
	return as(user).Put().AbsPath(path).Body([]byte(body)).Do(context.Background()).Error()
}

var _ = Describe("virt-api", func() {
	ctx := context.Background()

	It("lets a user do only what the API server allows", func() {
		halted := builder.MakeVM("mine").Namespace("default").Strategy(v1.RunStrategyHalted).Obj()
		Expect(k8s.Create(ctx, halted)).To(Succeed())
		err := put("starter", verbPath("v1", "mine", "start"), "{}")
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("virtualmachines/start")))

		allow("starter", "update", "virtualmachines/start")
		Eventually(func() error { return put("starter", verbPath("v1", "mine", "start"), "{}") }).WithTimeout(startLimit).
			Should(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(halted), halted)).To(Succeed())
		Expect(halted.Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyAlways)))

		err = put("starter", verbPath("v1", "mine", "stop"), "{}")
		Expect(apierrors.IsForbidden(err)).To(BeTrue(), "start does not include stop: %v", err)
	})

	It("changes nothing on a dry run, and serves both versions", func() {
		vm := builder.MakeVM("dry").Namespace("default").Strategy(v1.RunStrategyHalted).Obj()
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		allow("tester", "update", "virtualmachines/start")
		Eventually(func() error { return put("tester", verbPath("v1alpha3", "dry", "start"), `{"dryRun":["All"]}`) }).
			WithTimeout(startLimit).Should(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vm), vm)).To(Succeed())
		Expect(vm.Spec.RunStrategy).To(HaveValue(Equal(v1.RunStrategyHalted)))
		err := put("tester", verbPath("v1", "dry", "start"), `{"dryRun":["Some"]}`)
		Expect(err).To(MatchError(ContainSubstring(`dryRun[0]: "Some" is not supported, use All`)))
	})

	It("writes state change requests to the VM's status, and the grace period to its VMI", func() {
		vm := builder.MakeVM("manual").Namespace("default").Strategy(v1.RunStrategyManual).Obj()
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		vmi := builder.MakeVMI("manual").Namespace("default").OwnedBy(vm).Obj()
		vmi.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		Expect(k8s.Create(ctx, vmi)).To(Succeed())
		vmi.Status.Phase = v1.Running
		Expect(k8s.Status().Update(ctx, vmi)).To(Succeed())
		allow("operator", "update", "virtualmachines/restart")
		Eventually(func() error { return put("operator", verbPath("v1", "manual", "restart"), `{"gracePeriodSeconds":0}`) }).
			WithTimeout(startLimit).Should(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vm), vm)).To(Succeed())
		Expect(vm.Status.StateChangeRequests).To(HaveLen(2))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(vmi), vmi)).To(Succeed())
		Expect(vmi.Spec.TerminationGracePeriodSeconds).To(HaveValue(BeEquivalentTo(1)))

		err := put("operator", verbPath("v1", "manual", "restart"), "")
		Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
		Expect(err).To(MatchError(ContainSubstring("stop/start already underway")))
	})

	It("serves discovery to a user without permissions", func() {
		list := &metav1.APIResourceList{}
		raw, err := as("nobody").Get().AbsPath(group + "/v1").DoRaw(ctx)
		Expect(err).NotTo(HaveOccurred())
		Expect(json.Unmarshal(raw, list)).To(Succeed())
		names := []string{}
		for _, resource := range list.APIResources {
			names = append(names, resource.Name)
		}
		Expect(names).To(ContainElements("virtualmachines/start", "virtualmachines/stop", "virtualmachines/restart"))
		for _, path := range []string{"/apis", group, "/openapi/v2", "/openapi/v3"} {
			_, err := as("nobody").Get().AbsPath(path).DoRaw(ctx)
			Expect(err).NotTo(HaveOccurred(), path)
		}
	})

	It("returns a Status for an object that does not exist", func() {
		allow("lost", "update", "virtualmachines/start")
		var err error
		Eventually(func() bool {
			err = put("lost", verbPath("v1", "nowhere", "start"), "{}")
			return apierrors.IsNotFound(err)
		}).WithTimeout(startLimit).Should(BeTrue())
		Expect(err).To(MatchError(ContainSubstring(`virtualmachine.kubevirt.io "nowhere" not found`)))
	})

	It("trusts the front proxy's headers only with the front proxy's certificate", func() {
		vm := builder.MakeVM("proxied").Namespace("default").Strategy(v1.RunStrategyHalted).Obj()
		Expect(k8s.Create(ctx, vm)).To(Succeed())
		denied := BeElementOf(http.StatusUnauthorized, http.StatusForbidden)
		Expect(startAsAdmin("proxied")).To(denied)
		Expect(startAsAdmin("proxied", proxy.ClientCertificate("somebody-else"))).To(denied)
		Expect(startAsAdmin("proxied", pki.New(GinkgoT()).ClientCertificate(pki.FrontProxyName))).To(denied)
		Expect(startAsAdmin("proxied", proxy.ClientCertificate(pki.FrontProxyName))).To(Equal(http.StatusAccepted))
	})

	It("rejects a body that is too large", func() {
		allow("verbose", "update", "virtualmachines/start")
		body := `{"paused":false,"x":"` + string(bytes.Repeat([]byte("x"), 2<<20)) + `"}`
		Eventually(func() error { return put("verbose", verbPath("v1", "mine", "start"), body) }).
			WithTimeout(startLimit).Should(Satisfy(apierrors.IsRequestEntityTooLargeError))
	})
})
