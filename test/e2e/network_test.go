// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

var _ = Describe("A guest on the network", func() {
	// reaches runs a guest on one node and a peer on the other, and checks that each can connect to the other.
	reaches := func(ctx context.Context, binding option) {
		names := nodes(ctx)
		guestNode, peerNode := names[0], names[len(names)-1]
		namespace := newNamespace(ctx)
		server := startPeer(ctx, namespace, "server", peerNode, "serve")
		create(ctx, makeVM(namespace, "net", binding, withNode(guestNode), withUserData(fmt.Sprintf(
			"#!/bin/sh\nuntil wget -q -T 5 -O - http://%s:8080/ >/dev/console; do sleep 1; done\n",
			server.Status.PodIP))))
		instance := expectReady(ctx, namespace, "net")
		expectConsole(ctx, namespace, "net", bootTimeout, ContainSubstring("VIREO-POD"))

		By("connecting to the guest through a Service")
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guest"},
			Spec:       corev1.ServiceSpec{Selector: map[string]string{"vm": "net"}, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		create(ctx, service)
		expectExec(ctx, server, bootTimeout, ContainSubstring("hello from"), "/tools", "get",
			"http://"+service.Spec.ClusterIP+"/")
		Expect(instance.Status.Interfaces).To(
			ContainElement(And(HaveField("Name", "default"), HaveField("MAC", Not(BeEmpty())))))
	}

	It("connects to a Pod on another node and is reachable through a Service, with masquerade", func(ctx context.Context) {
		reaches(ctx, func(*v1.VirtualMachine) {})
	}, specTimeout(8*time.Minute))

	It("connects to a Pod on another node and is reachable through a Service, with bridge", extended(3),
		func(ctx context.Context) {
			reaches(ctx, func(vm *v1.VirtualMachine) {
				spec(vm).Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{
					Bridge: &v1.InterfaceBridge{}}
			})
		}, specTimeout(8*time.Minute))

	It("opens only the ports that the interface lists", extended(3), func(ctx context.Context) {
		namespace := newNamespace(ctx)
		peer := startPeer(ctx, namespace, "peer", "", "serve")
		create(ctx, makeVM(namespace, "ports", func(vm *v1.VirtualMachine) {
			spec(vm).Domain.Devices.Interfaces[0].Ports = []v1.Port{{Name: "web", Port: 80}}
		}, withUserData("#!/bin/sh\nhttpd -p 81 -h /www; echo SECOND-SERVER >/dev/console\n")))
		instance := expectReady(ctx, namespace, "ports")
		expectConsole(ctx, namespace, "ports", bootTimeout, ContainSubstring("SECOND-SERVER"))
		ip := instance.Status.Interfaces[0].IP
		expectExec(ctx, peer, bootTimeout, ContainSubstring("hello from"), "/tools", "get", "http://"+ip+"/")
		_, err := execIn(ctx, peer, "/tools", "get", "http://"+ip+":81/")
		Expect(err).To(HaveOccurred(), "port 81 is not listed and accepts connections")
	}, specTimeout(8*time.Minute))
})
