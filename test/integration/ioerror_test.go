// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// inMounts calls a function in the mount namespace of a process, in a thread that ends afterwards.
func inMounts(pid int, do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
			if err != nil {
				return err
			}
			defer func() { _ = namespace.Close() }()
			root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
			if err != nil {
				return err
			}
			defer func() { _ = root.Close() }()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := errors.Join(unix.Fchdir(int(root.Fd())), unix.Chroot(".")); err != nil {
				return err
			}
			return do()
		}()
	}()
	return <-done
}

var _ = Describe("A guest with full storage", Label("libvirt"), func() {
	It("is paused with an I/O error, and resumed when there is space", extended(2), func() {
		ctx := context.Background()
		p := newPod()
		dir := launcherpod.DiskDir("scratch")
		image := filepath.Join(dir, launcherpod.DiskImage)
		Expect(os.MkdirAll(p.daemon.Host(dir), 0o755)).To(Succeed())
		Expect(inMounts(p.daemon.PID(), func() error {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0,
				fmt.Sprintf("size=1m,mode=700,uid=%d", launcherpod.QEMUUser)); err != nil {
				return err
			}
			if err := os.WriteFile(image, nil, 0o600); err != nil {
				return err
			}
			return os.Chown(image, launcherpod.QEMUUser, launcherpod.QEMUUser)
		})).To(Succeed())
		Expect(inMounts(p.daemon.PID(), func() error { return os.Truncate(image, 16<<20) })).To(Succeed())
		g := bootLinuxOn(p, launcherpod.EphemeralDisksDir+"/data.img", func(domain *libvirtxml.Domain) {
			domain.Devices.Disks = append(domain.Devices.Disks, libvirtxml.DomainDisk{
				Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw", ErrorPolicy: "stop"},
				Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: image}},
				Target: &libvirtxml.DomainDiskTarget{Dev: "vdb", Bus: "virtio"},
			})
		})
		reason := func() string {
			d, err := g.conn.Domain(ctx, g.domain)
			Expect(err).NotTo(HaveOccurred())
			return d.Reason
		}
		g.start("dd if=/dev/zero of=/dev/vdb bs=1M count=8 oflag=direct; echo writ''ten")
		Eventually(reason).Should(Equal(hypervisor.PausedIOError))
		Expect(g.conn.DiskErrors(ctx, g.domain)).To(
			Equal(map[string]hypervisor.DiskError{"vdb": hypervisor.DiskErrorNoSpace}))

		By("being paused again while there is no space")
		Expect(g.conn.ResumeAfter(ctx, g.domain, hypervisor.PausedIOError)).To(Succeed())
		Eventually(reason).Should(Equal(hypervisor.PausedIOError))
		Expect(g.output.String()).NotTo(ContainSubstring("written"))

		By("repeating the failed write when there is space")
		Expect(inMounts(p.daemon.PID(), func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "size=64m") })).
			To(Succeed())
		Expect(g.conn.ResumeAfter(ctx, g.domain, hypervisor.PausedIOError)).To(Succeed())
		Eventually(g.output.String).Should(ContainSubstring("written"))

		By("staying paused when a user paused it")
		Expect(g.conn.Pause(ctx, g.domain)).To(Succeed())
		Expect(g.conn.ResumeAfter(ctx, g.domain, hypervisor.PausedIOError)).To(Succeed())
		Expect(reason()).To(Equal(hypervisor.PausedByUser))
	})
})
