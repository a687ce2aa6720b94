// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/media/overlay"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/libvirtd"
)

const diskBytes = 1 << 20

// pod is a Pod with its libvirtd, and with what kubelet and agent prepare for a domain.
type pod struct {
	daemon *libvirtd.Daemon
	conn   *libvirt.Connect
	pool   *libvirt.StoragePool
	// image is the content of containerDisks' images.
	image []byte
}

func newPod() *pod {
	GinkgoHelper()
	p := &pod{image: make([]byte, diskBytes)}
	p.daemon, p.conn = startLibvirtd()
	var err error
	p.pool, err = p.conn.StoragePoolCreateXML(fmt.Sprintf(
		"<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>",
		launcherpod.EphemeralPool, launcherpod.EphemeralDisksDir), 0)
	Expect(err).NotTo(HaveOccurred())
	return p
}

// prepare creates the files, devices and taps that the domain needs.
func (p *pod) prepare(domain *libvirtxml.Domain) {
	GinkgoHelper()
	for i := range domain.Devices.Disks {
		p.prepareDisk(&domain.Devices.Disks[i])
	}
	for i := range domain.Devices.Interfaces {
		p.prepareTap(&domain.Devices.Interfaces[i])
	}
	if domain.OS.Kernel != "" {
		p.write(domain.OS.Kernel, tinyKernel())
	}
	if domain.OS.ACPI != nil {
		for _, table := range domain.OS.ACPI.Tables {
			p.write(table.Path, acpiTable(table.Type))
		}
	}
}

// acpiTable returns a table that consists of its header only. Source: ACPI Specification 6.5, 5.2.6.
func acpiTable(kind string) []byte {
	const header = 36
	table := make([]byte, header)
	copy(table, strings.ToUpper(kind))
	binary.LittleEndian.PutUint32(table[4:], header)
	return table
}

func (p *pod) prepareDisk(disk *libvirtxml.DomainDisk) {
	GinkgoHelper()
	switch {
	case disk.Source == nil, disk.Source.File != nil && disk.Source.File.File == "":
		// an empty drive
	case disk.Source.Block != nil:
		p.prepareBlockDevice(disk.Source.Block.Dev)
	case disk.Source.DataStore != nil:
		p.writeOverlay(disk.Source.File.File, p.prepareBacking(disk.Source.DataStore.Source), diskBytes)
	case disk.Driver.Type == "qcow2":
		backing := p.prepareBacking(disk.BackingStore.Source)
		volume, err := p.pool.StorageVolCreateXML(fmt.Sprintf(`<volume><name>%s</name><capacity>%d</capacity>
			<target><format type='qcow2'/></target><backingStore><path>%s</path><format type='raw'/></backingStore></volume>`,
			filepath.Base(disk.Source.File.File), diskBytes, backing), 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(volume.Delete, libvirt.STORAGE_VOL_DELETE_NORMAL)
	default:
		p.write(disk.Source.File.File, make([]byte, diskBytes))
	}
}

// prepareBacking creates the backing file or device of an overlay, and returns its path.
func (p *pod) prepareBacking(source *libvirtxml.DomainDiskSource) string {
	GinkgoHelper()
	if source.Block != nil {
		p.prepareBlockDevice(source.Block.Dev)
		return source.Block.Dev
	}
	p.write(source.File.File, p.image)
	return source.File.File
}

// writeOverlay writes an overlay of a raw image or a block device of the Pod, as the agent does before it starts a
// guest.
func (p *pod) writeOverlay(podPath, dataFile string, bytes int64) {
	GinkgoHelper()
	reader, _, err := overlay.Overlay{DiskBytes: uint64(bytes), DataFile: dataFile}.Open()
	Expect(err).NotTo(HaveOccurred())
	content, err := io.ReadAll(reader)
	Expect(err).NotTo(HaveOccurred())
	p.write(podPath, content)
}

func (p *pod) write(podPath string, content []byte) {
	GinkgoHelper()
	path := p.daemon.Host(podPath)
	Expect(os.MkdirAll(filepath.Dir(path), 0o755)).To(Succeed())
	Expect(os.WriteFile(path, content, 0o644)).To(Succeed())
	Expect(os.Chown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
	p.removeLater(podPath)
}

// removeLater removes a file of the Pod, if it is still there, when the spec ends: the next one may use the same Pod.
func (p *pod) removeLater(podPath string) {
	path := p.daemon.Host(podPath)
	DeferCleanup(func() { Expect(os.RemoveAll(path)).To(Succeed()) })
}

// prepareBlockDevice creates a loop device in the Pod, as the kubelet does for a claim. The returned function makes it
// larger.
func (p *pod) prepareBlockDevice(podPath string) (grow func(bytes int64)) {
	GinkgoHelper()
	file := filepath.Join(GinkgoT().TempDir(), "block")
	Expect(os.WriteFile(file, make([]byte, diskBytes), 0o600)).To(Succeed())
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	loop := strings.TrimSpace(string(out))
	// A device that QEMU still has open is detached as soon as QEMU has ended.
	DeferCleanup(func() {
		out, err := exec.Command("losetup", "--detach", loop).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	})
	var stat unix.Stat_t
	Expect(unix.Stat(loop, &stat)).To(Succeed())
	path := p.daemon.Host(podPath)
	Expect(unix.Mknod(path, unix.S_IFBLK|0o600, int(stat.Rdev))).To(Succeed())
	Expect(os.Chown(path, launcherpod.QEMUUser, launcherpod.QEMUUser)).To(Succeed())
	p.removeLater(podPath)
	return func(bytes int64) {
		GinkgoHelper()
		Expect(os.Truncate(file, bytes)).To(Succeed())
		out, err := exec.Command("losetup", "--set-capacity", loop).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	}
}

// prepareTap creates a tap in the Pod's network namespace.
func (p *pod) prepareTap(iface *libvirtxml.DomainInterface) {
	GinkgoHelper()
	tap := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: iface.Target.Dev},
		Mode:      netlink.TUNTAP_MODE_TAP,
		Owner:     launcherpod.QEMUUser,
		Group:     launcherpod.QEMUUser,
	}
	if iface.Driver != nil && iface.Driver.Queues > 1 {
		tap.Flags = netlink.TUNTAP_MULTI_QUEUE
	}
	if iface.MTU != nil {
		tap.MTU = int(iface.MTU.Size)
	}
	Expect(inNamespace(p.daemon.NetNS(), func() error {
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		return netlink.LinkSetUp(tap)
	})).To(Succeed())
	DeferCleanup(func() {
		Expect(inNamespace(p.daemon.NetNS(), func() error { return netlink.LinkDel(tap) })).To(Succeed())
	})
}
