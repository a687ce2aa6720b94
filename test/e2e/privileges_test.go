// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// noCapabilities is a set of capabilities in /proc/PID/status.
const noCapabilities = "0000000000000000"

// What the kernel says about the two halves of the node agent, whatever their manifests contain.
var _ = Describe("The node agent", kvmLinux(), func() {
	It("has no privilege in the process that handles what guests send", func(ctx context.Context) {
		needLocalNodes()
		for _, pod := range podsOfComponent(ctx, "virt-handler") {
			Expect(pod.Spec.HostPID).To(BeFalse())
			Expect(pod.Spec.HostNetwork).To(BeFalse())
			process := mainProcess(&pod, "virt-handler")
			status := statusOf(process.PID)
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				Expect(status).To(HaveKeyWithValue(set, noCapabilities), set)
			}
			Expect(status).To(HaveKeyWithValue("NoNewPrivs", "1"))
			Expect(status).To(HaveKeyWithValue("Seccomp", "2"))
			Expect(strings.Fields(status["Uid"])).To(HaveEach("65527"))
			Expect(strings.Fields(status["Gid"])).To(HaveEach("65527"))
			namespaces := strings.Fields(status["NSpid"])
			Expect(namespaces[len(namespaces)-1]).To(Equal("1"), "it is the first process of a process namespace of its own")

			root := filepath.Join("/proc", strconv.Itoa(process.PID), "root")
			Expect(filepath.Join(root, "var/lib/kubelet/pods")).NotTo(BeAnExistingFile())
			Expect(filepath.Join(root, "var/lib/kubelet/device-plugins")).NotTo(BeAnExistingFile())
			Expect(filepath.Join(root, "dev/net")).NotTo(BeAnExistingFile())

			By("asking the container itself")
			said := kubectl(ctx, "", "exec", "-n", pod.Namespace, pod.Name, "-c", "virt-handler", "--", "grep", "Cap",
				"/proc/1/status")
			Expect(fieldsOf(said)).To(HaveLen(5))
			Expect(fieldsOf(said)).To(HaveEach(noCapabilities))
		}
	}, specTimeout(2*time.Minute))

	It("has neither a token nor a network in the processes with privileges, and each only its own capabilities",
		func(ctx context.Context) {
			needLocalNodes()
			for _, pod := range podsOfComponent(ctx, "virt-broker") {
				Expect(pod.Spec.HostNetwork).To(BeFalse())
				Expect(pod.Spec.HostIPC).To(BeFalse())
				Expect(pod.Spec.Volumes).NotTo(ContainElement(HaveField("Projected", Not(BeNil()))),
					"a token would be in a projected volume")
				for _, program := range brokerapi.Programs {
					process := mainProcess(&pod, string(program))
					status := statusOf(process.PID)
					Expect(status).To(And(HaveKeyWithValue("NoNewPrivs", "1"), HaveKeyWithValue("Seccomp", "2")))
					Expect(filepath.Join("/proc", strconv.Itoa(process.PID), "root/var/run/secrets")).NotTo(BeAnExistingFile())
					Expect(socketsOf(process.PID)).To(BeEmpty(), "open sockets of its network namespace")
					bounding, err := strconv.ParseUint(status["CapBnd"], 16, 64)
					Expect(err).NotTo(HaveOccurred())
					hasNetAdmin := bounding&(1<<unix.CAP_NET_ADMIN) != 0
					Expect(hasNetAdmin).To(Equal(program == brokerapi.NetworkBroker), string(program))
					if program == brokerapi.DevicePlugin {
						Expect(status).To(HaveKeyWithValue("CapBnd", noCapabilities))
					}
				}
			}
		}, specTimeout(2*time.Minute))
})

// podsOfComponent returns the Pods of a component, of which there are some.
func podsOfComponent(ctx context.Context, component string) []corev1.Pod {
	GinkgoHelper()
	pods := &corev1.PodList{}
	Expect(k8s.List(ctx, pods, client.InNamespace("kubevirt"), client.MatchingLabels{v1.AppLabel: component})).
		To(Succeed())
	Expect(pods.Items).NotTo(BeEmpty())
	return pods.Items
}

// statusOf returns the fields of /proc/PID/status.
func statusOf(pid int) map[string]string {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	Expect(err).NotTo(HaveOccurred())
	return fieldsOf(string(text))
}

// fieldsOf parses lines of a key, a colon and a value.
func fieldsOf(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, found := strings.Cut(line, ":"); found {
			fields[key] = strings.TrimSpace(value)
		}
	}
	return fields
}

// socketsOf returns the lines of the TCP and UDP sockets in the network namespace of a process.
func socketsOf(pid int) []string {
	GinkgoHelper()
	var all []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "net", table))
		if os.IsNotExist(err) {
			continue // a node without IPv6
		}
		Expect(err).NotTo(HaveOccurred())
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "local_address") {
				all = append(all, table+" "+strings.TrimSpace(line))
			}
		}
	}
	return all
}
