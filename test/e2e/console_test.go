// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestBoot is what the small guest writes to its console first.
const guestBoot = "VIREO-GUEST-BOOT"

// counter counts on a disk and on the console, once a second.
const counter = `(n=0; while true; do n=$((n+1)); echo $n >/mnt/data/count; sync; echo "WORK $n." >/dev/console; sleep 1; done) &` + "\n"

var countLine = regexp.MustCompile(`(?:WORK |guest-bare: second=)(\d+)[. ]`)

// quietTime is how long a VM without changes is watched for writes.
var quietTime = durationOr("VIREO_E2E_QUIET", 45*time.Second)

func durationOr(variable string, otherwise time.Duration) time.Duration {
	if value, err := time.ParseDuration(os.Getenv(variable)); err == nil {
		return value
	}
	return otherwise
}

// These specs share one guest for everything that a user does with a running VM.
var _ = Describe("A user of a running guest", kvmLinux(), Ordered, ContinueOnFailure, func() {
	const name = "daily"
	var (
		namespace string
		instance  *v1.VirtualMachineInstance
		log       func() string
		stop      context.CancelFunc
	)

	BeforeAll(func(ctx context.Context) {
		namespace = newNamespace(ctx)
		create(ctx, makeVM(namespace, name, withRunStrategy(v1.RunStrategyHalted),
			withDisk("data", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("64Mi")}}),
			withUserData("#!/bin/sh\n"+blueScreen+counter)))
		By("starting it paused")
		Eventually(func() string { output, _ := runVirtctl(ctx, "start", "-n", namespace, name, "--paused"); return output }).
			WithContext(ctx).WithTimeout(shortTimeout).Should(ContainSubstring("scheduled to start"))
		expectPrintable(ctx, namespace, name, v1.VirtualMachineStatusPaused)
		instance = vmi(ctx, namespace, name)
		var following context.Context
		following, stop = context.WithCancel(context.Background())
		log = followConsole(following, instance)
		Expect(log()).NotTo(ContainSubstring(guestBoot))
		expectVirtctl(ctx, "unpause", "-n", namespace, "vm", name)
		expectReady(ctx, namespace, name)
		Eventually(log).WithContext(ctx).WithTimeout(bootTimeout).
			Should(And(ContainSubstring(guestReady), ContainSubstring("WORK 1.")))
	}, nodeTimeout(8*time.Minute))
	AfterAll(func() {
		if stop != nil {
			stop()
		}
	})
	AfterEach(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))

	// count returns the last number that the guest has counted to.
	count := func() int {
		all := countLine.FindAllStringSubmatch(log(), -1)
		if len(all) == 0 {
			return 0
		}
		n, _ := strconv.Atoi(all[len(all)-1][1])
		return n
	}
	expectStopsCounting := func(ctx context.Context) {
		GinkgoHelper()
		before := -1
		Eventually(func() bool { // until buffered output is read
			last := before
			before = count()
			return before == last
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(2*time.Second).
			Should(BeTrue(), "the guest continues counting")
		Consistently(count).WithContext(ctx).WithTimeout(6 * time.Second).WithPolling(pollInterval).Should(Equal(before))
	}
	expectContinues := func(ctx context.Context) {
		GinkgoHelper()
		before := count()
		Eventually(count).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(pollInterval).
			Should(BeNumerically(">", before+1))
	}

	It("logs in over the console, and a second connection replaces the first", func(ctx context.Context) {
		first := openConsole(ctx, namespace, name)
		first.press("echo ANSWER-$((6*7))\n")
		expectOutput(ctx, first.Out, "ANSWER-42")

		second := openConsole(ctx, namespace, name)
		Eventually(first.Session).WithContext(ctx).WithTimeout(shortTimeout).Should(gexec.Exit())
		Expect(first.ExitCode()).NotTo(BeZero())
		Expect(string(first.Err.Contents())).To(ContainSubstring("another client"))
		second.press("hostname; echo AGAIN-$((40+3))\n")
		expectOutput(ctx, second.Out, "AGAIN-43")
		second.press("\x1d")
		Eventually(second.Session).WithContext(ctx).WithTimeout(shortTimeout).Should(gexec.Exit(0))
	}, specTimeout(4*time.Minute))

	It("takes a screenshot and connects to the screen over VNC", func(ctx context.Context) {
		Expect(blueShare(ctx, namespace, name)).To(BeNumerically(">", 0.5), "the guest painted its screen blue")
		width, height := expectScreen(ctx, vncProxy(ctx, namespace, name))
		Expect(width).To(BeNumerically(">=", 640))
		Expect(height).To(BeNumerically(">=", 350))
	}, specTimeout(3*time.Minute))

	It("connects to the guest's web server over port-forward", func(ctx context.Context) {
		address, _ := forward(ctx, namespace, name, ":80")
		expectHello(ctx, address)
		expectHello(ctx, address)
	}, specTimeout(3*time.Minute))

	It("reads the guest agent's information", func(ctx context.Context) {
		expectAgent(ctx, namespace, name, shortTimeout)
		Expect(expectVirtctl(ctx, "guestosinfo", "-n", namespace, name)).To(ContainSubstring("vireo-guest"))
		Expect(expectVirtctl(ctx, "fslist", "-n", namespace, name)).To(ContainSubstring("/mnt/data"))
		expectVirtctl(ctx, "userlist", "-n", namespace, name)
	}, specTimeout(3*time.Minute))

	It("pauses the guest, which does nothing until it is unpaused, and then continues where it was",
		func(ctx context.Context) {
			expectContinues(ctx)
			expectVirtctl(ctx, "pause", "-n", namespace, "vm", name)
			expectPrintable(ctx, namespace, name, v1.VirtualMachineStatusPaused)
			Expect(condition(vmi(ctx, namespace, name), v1.VirtualMachineInstancePaused)).
				To(HaveField("Status", corev1.ConditionTrue))
			expectStopsCounting(ctx)
			Expect(expectRefused(ctx, "pause", "-n", namespace, "vm", name)).To(ContainSubstring("already paused"))
			expectVirtctl(ctx, "unpause", "-n", namespace, "vm", name)
			expectContinues(ctx)
			expectPrintable(ctx, namespace, name, v1.VirtualMachineStatusRunning)
			for i, found := range countLine.FindAllStringSubmatch(log(), -1) {
				Expect(found[1]).To(Equal(strconv.Itoa(i+1)), "no number is missing and none is repeated")
			}
			expectSameGuest(ctx, instance)
		}, specTimeout(4*time.Minute))

	It("freezes the guest's file systems, and the freeze ends with unfreeze or at its timeout", extended(2),
		func(ctx context.Context) {
			expectAgent(ctx, namespace, name, shortTimeout)
			frozen := func() string { return vmi(ctx, namespace, name).Status.FSFreezeStatus }
			put := func(verb, body string) {
				GinkgoHelper()
				Expect(clientset.CoreV1().RESTClient().Put().AbsPath(verbPath(namespace, "virtualmachineinstances", name, verb)).
					SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()).To(Succeed())
			}
			By("unfreezing")
			put("freeze", `{"unfreezeTimeout":"5m0s"}`)
			Eventually(frozen).WithContext(ctx).WithTimeout(shortTimeout).Should(Equal("frozen"))
			expectStopsCounting(ctx)
			put("unfreeze", "{}")
			expectContinues(ctx)
			Eventually(frozen).WithContext(ctx).WithTimeout(shortTimeout).Should(BeEmpty())

			By("waiting for the timeout")
			put("freeze", `{"unfreezeTimeout":"45s"}`)
			expectStopsCounting(ctx)
			expectContinues(ctx)
			Eventually(frozen).WithContext(ctx).WithTimeout(shortTimeout).Should(BeEmpty())
		}, specTimeout(5*time.Minute))

	It("reboots the guest with softreboot and with reset, and the VMI stays the same", extended(2),
		func(ctx context.Context) {
			expectAgent(ctx, namespace, name, shortTimeout)
			boots := func() int { return strings.Count(log(), guestBoot) }
			ready := func() int { return strings.Count(log(), guestReady) }
			before := boots()
			expectVirtctl(ctx, "soft-reboot", "-n", namespace, name)
			Eventually(ready).WithContext(ctx).WithTimeout(bootTimeout).Should(Equal(before + 1))
			Expect(log()).To(ContainSubstring(guestShutdown))
			shutdowns := strings.Count(log(), guestShutdown)

			expectVirtctl(ctx, "reset", "-n", namespace, name)
			Eventually(ready).WithContext(ctx).WithTimeout(bootTimeout).Should(Equal(before + 2))
			Expect(boots()).To(Equal(before + 2))
			Expect(strings.Count(log(), guestShutdown)).To(Equal(shutdowns), "a reset does not shut the guest down")
			expectSameGuest(ctx, instance)
		}, specTimeout(9*time.Minute))

	It("does nothing, and no component writes VM, VMI or Pod", extended(3), func(ctx context.Context) {
		versions := func() string {
			vm := &v1.VirtualMachine{}
			Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
			now := vmi(ctx, namespace, name)
			return fmt.Sprint(vm.ResourceVersion, now.ResourceVersion, launcherPod(ctx, now).ResourceVersion)
		}
		before, since := versions(), time.Now()
		Eventually(func() time.Duration {
			if now := versions(); now != before {
				before, since = now, time.Now()
			}
			return time.Since(since)
		}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).
			Should(BeNumerically(">", 15*time.Second), "VM, VMI or Pod are still written to")
		Consistently(versions).WithContext(ctx).WithTimeout(quietTime).WithPolling(time.Second).Should(Equal(before))
	}, specTimeout(4*time.Minute+quietTime))
})

// The spec is Serial because it also ends the connections of other specs to virt-api.
var _ = Describe("A user of a running guest when virt-api is replaced", Serial, func() {
	It("keeps console and port, while the old Pods wait for them", func(ctx context.Context) {
		namespace, name := newNamespace(ctx), "linked"
		DeferCleanup(func(ctx context.Context) { dumpFailed(ctx, namespace) }, nodeTimeout(time.Minute))
		create(ctx, makeVM(namespace, name))
		instance := expectReady(ctx, namespace, name)
		at := openConsole(ctx, namespace, name)
		address, _ := forward(ctx, namespace, name, ":80")
		expectHello(ctx, address)
		restartVirtAPI(ctx)
		at.press("echo KEPT-$((40+4))\n")
		expectOutput(ctx, at.Out, "KEPT-44")
		expectHello(ctx, address)
		expectSameGuest(ctx, instance)
	}, specTimeout(8*time.Minute))
})

// expectSameGuest checks that a VMI has not been replaced, and runs.
func expectSameGuest(ctx context.Context, instance *v1.VirtualMachineInstance) {
	GinkgoHelper()
	now := vmi(ctx, instance.Namespace, instance.Name)
	Expect(now).To(And(HaveField("UID", instance.UID), HaveField("Status.Phase", v1.Running)))
	Expect(launcherPod(ctx, now).Status.Phase).To(Equal(corev1.PodRunning))
}

// expectHello requests the small guest's web page until it gets a response.
func expectHello(ctx context.Context, address string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
		g.Expect(err).NotTo(HaveOccurred())
		response, err := (&http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(
			request)
		g.Expect(err).NotTo(HaveOccurred())
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(text)).To(ContainSubstring("hello from"))
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(Succeed())
}

// expectAgent waits until the VMI reports that the guest agent is connected.
func expectAgent(ctx context.Context, namespace, name string, timeout time.Duration) {
	GinkgoHelper()
	Eventually(func() *v1.VirtualMachineInstanceCondition {
		return condition(vmi(ctx, namespace, name), v1.VirtualMachineInstanceAgentConnected)
	}).WithContext(ctx).WithTimeout(timeout).WithPolling(pollInterval).Should(HaveField("Status", corev1.ConditionTrue))
}

// expectPrintable waits for a VM's printableStatus.
func expectPrintable(ctx context.Context, namespace, name string, status v1.VirtualMachinePrintableStatus) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vm := &v1.VirtualMachine{}
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, vm)).To(Succeed())
		g.Expect(vm.Status.PrintableStatus).To(Equal(status))
	}).WithContext(ctx).WithTimeout(bootTimeout).WithPolling(pollInterval).Should(Succeed())
}
