// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcher/freezer"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// hostileAgent responds to each request for a list with a hundred thousand entries. It is also an old agent, without a
// command for SSH keys, of a guest without file systems that can be frozen. In QEMU's agent protocol request and
// response are a line of JSON each. libvirt first sends guest-sync, whose response contains its number.
const hostileAgent = `#!/bin/sh
exec 3<>"$1"
list() {
	printf '{"return":['
	yes "{$1}," | head -n 99999 | tr -d '\n'
	echo "{$1}]}"
}
while :; do
	# While libvirt is not connected, a virtio port has no line to read.
	read -r line || { sleep 1; continue; }
	case $line in
	*guest-sync*) printf '{"return":%s}\n' "$(echo "$line" | sed 's/.*"id" *: *\([0-9]*\).*/\1/')" ;;
	*guest-get-users*) list '"user":"mallory","login-time":1.0' ;;
	*guest-network-get-interfaces*) list '"name":"eth0"' ;;
	*guest-get-osinfo*) echo '{"return":{"id":"evil"}}' ;;
	*guest-info*) echo '{"return":{"version":"5.0","supported_commands":[{"name":"guest-exec","enabled":true}]}}' ;;
	*guest-exec-status*) echo '{"return":{"exited":true,"exitcode":0}}' ;;
	*guest-exec*) echo '{"return":{"pid":7}}' ;;
	*guest-fsfreeze-freeze*) echo '{"return":0}' ;;
	*guest-fsfreeze-status*) echo '{"return":"thawed"}' ;;
	*) echo '{"error":{"class":"CommandNotFound","desc":"no"}}' ;;
	esac
done <&3 >&3
`

// One guest, because booting takes most of the time.
var _ = Describe("A guest with an agent", Label("libvirt"), Ordered, func() {
	ctx := context.Background()
	g := &linux{}
	BeforeAll(func() {
		*g = *startLinux()
		Eventually(func() error { _, err := g.conn.GuestUsers(ctx, g.domain); return err }).WithTimeout(
			3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	})

	hasStatistics(g)
	isFrozenForSnapshots(g)
	isThawedAfterKills(g)

	It("gets its clock set when it is unpaused", func() {
		Expect(g.conn.Watch(ctx, func() {})).To(Succeed())
		g.run("date -s @1000000000")
		Expect(g.conn.Pause(ctx, g.domain)).To(Succeed())
		Expect(g.conn.Unpause(ctx, g.domain)).To(Succeed())
		Eventually(func() (int64, error) {
			return strconv.ParseInt(strings.TrimSpace(g.run("date +%s")), 10, 64)
		}).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeNumerically(">", time.Now().Add(-time.Minute).Unix()))
	})

	It("is reported, and a freeze ends with a thaw or at its timeout", func() {
		about, err := g.conn.GuestAgent(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(about.Version).NotTo(BeEmpty())
		Expect(about.Commands).NotTo(BeEmpty())
		Expect(about.Info.Hostname).To(Equal("vireo-guest"))
		Expect(about.Info.OS.KernelRelease).NotTo(BeEmpty())
		Expect(about.Frozen).To(BeFalse())
		Expect(about.Filesystems.Items).To(ContainElement(And(
			HaveField("Mountpoint", "/mnt/"+dataSerial), HaveField("Type", "ext4"),
			HaveField("TotalBytes", BeNumerically(">", 1<<20)))))

		By("blocking a write during a freeze")
		Expect(g.conn.Freeze(ctx, g.domain, time.Hour)).To(Succeed())
		d, err := g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.Freeze()).NotTo(BeNil())
		Expect(d.Freeze().Thaw).To(BeTemporally("~", time.Now().Add(time.Hour), time.Minute))
		about, err = g.conn.GuestAgent(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(about.Frozen).To(BeTrue())
		g.start("(echo x > /mnt/data/x; sync; echo writ''ten) &")
		Consistently(g.output.String).WithTimeout(2 * time.Second).ShouldNot(ContainSubstring("written"))

		By("thawing at the timeout, by a restarted agent")
		second := g.pod.dial()
		Expect(second.Freeze(ctx, g.domain, 3*time.Second)).To(Succeed())
		third := g.pod.dial()
		d, err = third.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		third.KeepThaw(g.domain, d.Freeze())
		Eventually(g.output.String).WithTimeout(30 * time.Second).Should(ContainSubstring("written"))
		Eventually(func() *hypervisor.Freeze {
			d, err := third.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			return d.Freeze()
		}).WithTimeout(10 * time.Second).Should(BeNil())

		By("thawing on request")
		Expect(g.conn.Freeze(ctx, g.domain, 0)).To(Succeed())
		Expect(g.conn.Thaw(ctx, g.domain)).To(Succeed())
		Expect(g.conn.Thaw(ctx, g.domain)).To(Succeed())
		Expect(g.run("echo y > /mnt/data/y && sync && echo fine")).To(ContainSubstring("fine"))

		By("freezing and thawing with a backup's hooks, of which the agent of the node is notified")
		notified := make(chan struct{}, 16)
		Expect(third.Watch(ctx, func() {
			select {
			case notified <- struct{}{}:
			default:
			}
		})).To(Succeed())
		inPod, err := libvirtwire.Dial(ctx, g.pod.daemon.Socket())
		Expect(err).NotTo(HaveOccurred())
		defer inPod.Close()
		hooks := freezer.Freezer{Hypervisor: inPod, Domain: g.domain, SyncState: func() error { return nil }}
		until := time.Now().Add(time.Hour)
		Expect(hooks.Freeze(ctx, until)).To(Succeed())
		Eventually(notified).WithTimeout(10 * time.Second).Should(Receive())
		d, err = third.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.Freeze()).To(HaveField("Thaw", BeTemporally("~", until, time.Second)))
		about, err = g.conn.GuestAgent(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(about.Frozen).To(BeTrue())
		Expect(hooks.Thaw(ctx)).To(Succeed())
		Expect(hooks.Thaw(ctx)).To(Succeed())
		d, err = third.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.Freeze()).To(BeNil())
		Expect(g.run("echo z > /mnt/data/z && sync && echo well")).To(ContainSubstring("well"))

		By("reporting a guest agent that does not run")
		g.run("kill $(cat /run/qga/pid)")
		Eventually(func() error { _, err := g.conn.GuestUsers(ctx, g.domain); return err }).WithTimeout(
			3 * time.Minute).WithPolling(time.Second).Should(MatchError(hypervisor.ErrGuestSilent))
		Expect(hooks.Freeze(ctx, time.Time{})).To(MatchError(freezer.ErrNoAgent))
		Expect(g.conn.Freeze(ctx, g.domain, time.Hour)).To(MatchError(hypervisor.ErrGuestSilent))
		d, err = g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.Freeze()).To(BeNil(), "no freeze was sent")
	})

	It("can send any response, of which only a limited part is kept", func() {
		g.run("kill $(cat /run/qga/pid) 2>/dev/null; while pidof qemu-ga; do sleep 1; done")
		// The guest's shell reads lines of up to a kilobyte.
		for part := range slices.Chunk([]byte(hostileAgent), 600) {
			g.run("echo " + base64.StdEncoding.EncodeToString(part) + " | base64 -d >> /tmp/agent")
		}
		g.start("sh /tmp/agent $(readlink /dev/virtio-ports/org.qemu.guest_agent.0) &")
		By("leaving no freeze if nothing can be frozen")
		Eventually(func() error { return g.conn.Freeze(ctx, g.domain, time.Hour) }).WithTimeout(3 * time.Minute).WithPolling(
			time.Second).Should(Succeed())
		d, err := g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(d.Freeze()).To(BeNil())

		By("setting SSH keys with another command")
		keys := hypervisor.Credentials{Keys: map[string][]string{"root": {"ssh-ed25519 A"}}}
		Eventually(func() *hypervisor.CredentialsState {
			return g.conn.Credentials(g.domain, func() (hypervisor.Credentials, error) { return keys, nil })
		}).WithTimeout(time.Minute).Should(Equal(&hypervisor.CredentialsState{Synchronized: true}))

		By("limiting long responses")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Eventually(func() error {
			users, err := g.conn.GuestUsers(ctx, g.domain)
			if err == nil && (len(users.Items) == 0 || len(users.Items)+users.Omitted != 100_000) {
				err = fmt.Errorf("%d users and %d more", len(users.Items), users.Omitted)
			}
			return err
		}).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
		runtime.ReadMemStats(&after)
		AddReportEntry("MiB allocated", (after.TotalAlloc-before.TotalAlloc)>>20)
		info, _, err := g.conn.GuestInfo(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(info.Interfaces)).To(And(BeNumerically(">", 0), BeNumerically("<", 100)))
		Expect(info.OS.ID).To(Equal("evil"))
		_, err = g.conn.Domain(ctx, g.domain)
		Expect(err).NotTo(HaveOccurred(), "the connection still works")
	})

	It("has no statistics when it does not run", func() {
		Expect(g.conn.Destroy(ctx, g.domain)).To(Succeed())
		stats, err := g.conn.Stats(ctx, g.domain, false)
		if err == nil {
			Expect(stats).To(Equal(&hypervisor.Stats{}))
		} else {
			Expect(err).To(MatchError(hypervisor.ErrNoDomain))
		}
	})
})
