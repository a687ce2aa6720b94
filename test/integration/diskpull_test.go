// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/exporter/server"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
	"github.com/vireo-project/vireo/test/pki"
)

// exporter waits for the agent as an exporter does, and makes its connections available to clients of NBD at a socket.
type exporter struct {
	ca *pki.Authority
	// unused are the agent's connections that no client uses, and accepted is how many there were.
	unused   chan net.Conn
	accepted atomic.Int32
	address  backup.Exporter
	socket   string
}

func newExporter() *exporter {
	GinkgoHelper()
	const name = "virt-export-b.default.svc"
	e := &exporter{ca: pki.New(GinkgoT()), unused: make(chan net.Conn, 100),
		socket: filepath.Join(GinkgoT().TempDir(), "nbd")}
	serving := e.ca.IssueHost(name, x509.ExtKeyUsageServerAuth)
	config := server.AgentTLS(func() (*tls.Certificate, error) { return &serving, nil }, func() (*content.Backup, error) {
		return &content.Backup{Client: agentapi.BackupName(agentNode), CA: string(e.ca.PEM())}, nil
	})
	agents, err := tls.Listen("tcp", "127.0.0.1:0", config)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(agents.Close)
	clients, err := net.Listen("unix", e.socket)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(clients.Close)
	port := agents.Addr().(*net.TCPAddr).Port
	e.address = backup.Exporter{IP: "127.0.0.1", Port: int32(port), ServerName: name, UID: "e"}
	accept(agents, func(conn net.Conn) {
		if conn.(*tls.Conn).HandshakeContext(context.Background()) == nil {
			e.accepted.Add(1)
			e.unused <- conn
		}
	})
	accept(clients, e.serve)
	return e
}

func accept(listener net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
}

// serve connects a client to the agent. An exporter sends its flags first, and a client of NBD after the server's
// greeting. Connections of an earlier pull have ended.
func (e *exporter) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	flags, greeting := []byte{0, 0, 0, 3}, make([]byte, len("NBDMAGIC"))
	for agent := range e.unused {
		if _, err := agent.Write(flags); err != nil {
			continue
		}
		if _, err := io.ReadFull(agent, greeting); err != nil {
			continue
		}
		go func() {
			_, _ = io.Copy(client, io.MultiReader(bytes.NewReader(greeting), agent))
			_ = client.Close()
		}()
		sent := make([]byte, len(flags))
		if _, err := io.ReadFull(client, sent); err == nil && bytes.Equal(sent, flags) {
			_, _ = io.Copy(agent, client)
		}
		_ = agent.Close()
		return
	}
}

// tls is what an agent connects with.
func (e *exporter) tls() func(string) (*tls.Config, error) {
	own := e.ca.IssueHost(agentapi.BackupName(agentNode), x509.ExtKeyUsageClientAuth)
	return func(serverName string) (*tls.Config, error) {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: e.ca.Pool(), ServerName: serverName,
			NextProtos: []string{backup.ExporterProtocol}, Certificates: []tls.Certificate{own},
		}, nil
	}
}

// read returns all of a disk.
func (e *exporter) read(volume string) []byte {
	GinkgoHelper()
	raw := filepath.Join(GinkgoT().TempDir(), "pulled")
	out, err := qemuImg("convert", "-f", "raw", "-O", "raw", "nbd+unix:///"+volume+"?socket="+e.socket,
		raw).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
	content, err := os.ReadFile(raw)
	Expect(err).NotTo(HaveOccurred())
	return content
}

// extent is a part of a disk as qemu-img describes it.
type extent struct {
	Start  int64 `json:"start"`
	Length int64 `json:"length"`
	Data   bool  `json:"data"`
}

// changed returns the parts of a disk that have changed since the checkpoint. qemu-img reports those of a bitmap as no
// data.
func (e *exporter) changed(volume string) (parts []extent) {
	GinkgoHelper()
	image := fmt.Sprintf("driver=nbd,server.type=unix,server.path=%s,export=%s,x-dirty-bitmap=%s", e.socket, volume,
		backup.DirtyContext)
	out, err := qemuImg("map", "--output=json", "--image-opts", image).Output()
	Expect(err).NotTo(HaveOccurred(), string(out))
	var all []extent
	Expect(json.Unmarshal(out, &all)).To(Succeed())
	for _, part := range all {
		if !part.Data {
			parts = append(parts, part)
		}
	}
	return parts
}

// pullingGuest is an agent with a Linux guest whose disk is on a claim, and an exporter.
type pullingGuest struct {
	*node
	*linux
	exporter *exporter
	// image is the disk's file, and target the directory of the utility volume in the Pod.
	image, target string
}

func startPullingGuest() *pullingGuest {
	GinkgoHelper()
	boot := guestBoot()
	vmi := assignedVMI()
	vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingInitializing}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("256Mi"))}
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		KernelArgs: "console=tty0 console=ttyS0,115200n8 loglevel=4 panic=10 mitigations=off",
		Container: &v1.KernelBootContainer{Image: "example/kernel", KernelPath: "/boot/vmlinuz",
			InitrdPath: "/boot/initrd.img"},
	}}
	claim := claimStatus("data", corev1.PersistentVolumeFilesystem)
	claim.PersistentVolumeClaimInfo.FilesystemOverhead = ptr.To[v1.Percent]("0")
	claim.PersistentVolumeClaimInfo.Capacity[corev1.ResourceStorage] = resource.MustParse("16Mi")
	source := &v1.PersistentVolumeClaimVolumeSource{}
	source.ClaimName = "data"
	addDisk(vmi, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}, "data",
		v1.VolumeSource{PersistentVolumeClaim: source})
	vmi.Spec.Domain.Devices.Disks[len(vmi.Spec.Domain.Devices.Disks)-1].Serial = dataSerial
	vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, claim)
	// A guest with an interface waits ten seconds for a DHCP server, which the test does not have.
	vmi.Spec.Domain.Devices.Interfaces, vmi.Spec.Networks = nil, nil
	g := &pullingGuest{node: newNode(launcherPod(), vmi), exporter: newExporter(),
		target: launcherpod.UtilityVolumeDir("target")}
	g.exporters = g.exporter.tls()
	g.stopAgent()
	g.startAgent()
	g.writeImage()
	p := &pod{daemon: g.daemon}
	p.prepareKernel(boot)
	p.write(launcherpod.DiskDir("data")+"/disk.img", ext4())
	g.image = g.daemon.Host(launcherpod.DiskDir("data") + "/disk.img")
	Expect(os.Chmod(g.image, 0o600)).To(Succeed())
	Expect(os.MkdirAll(g.daemon.Host(g.target), 0o755)).To(Succeed())
	g.inPod(func() error {
		return unix.Mount("tmpfs", g.target, "tmpfs", 0, fmt.Sprintf("size=12m,mode=700,uid=%d", launcherpod.QEMUUser))
	})
	g.linkSocket()
	g.settle(isRunning)
	g.addUtilityVolume("target")
	conn, err := g.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
	Expect(err).NotTo(HaveOccurred())
	g.linux = &linux{pod: p, conn: conn, domain: launcherpod.DomainName(vmiKey.Namespace, vmiKey.Name)}
	g.openConsole()
	Eventually(g.output.String).WithTimeout(3 * time.Minute).Should(ContainSubstring("VIREO-GUEST-READY"))
	return g
}

// inPod does something with the Pod's mounts.
func (g *pullingGuest) inPod(do func() error) {
	GinkgoHelper()
	Expect(inMounts(g.daemon.PID(), do)).To(Succeed())
}

// scratchFiles returns the names of the files of a backup.
func (g *pullingGuest) scratchFiles(intent *backup.Intent) (names []string) {
	GinkgoHelper()
	g.inPod(func() error {
		entries, err := os.ReadDir(filepath.Join(g.target, intent.Directory))
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
		return err
	})
	return names
}

// write writes an intent, as virt-controller does, and reconciles until the record has a stage.
func (g *pullingGuest) write(intent *backup.Intent, stage v1.DiskBackupStage) *v1.DiskBackupRecord {
	GinkgoHelper()
	g.change(func(*v1.VirtualMachineInstanceSpec) {},
		func(s *v1.VirtualMachineInstanceStatus) { s.DiskBackup = intent.Status() })
	return g.expectStage(intent.ID, stage)
}

func (g *pullingGuest) expectStage(id string, stage v1.DiskBackupStage) (record *v1.DiskBackupRecord) {
	GinkgoHelper()
	Eventually(func(e Gomega) {
		_, err := g.reconcile()
		e.Expect(err).NotTo(HaveOccurred())
		record = g.vmi().Status.DiskBackupRecord
		e.Expect(record).NotTo(BeNil())
		e.Expect(record.ID).To(Equal(id))
		e.Expect(record.Stage).To(Equal(stage), "%+v", record)
	}).WithTimeout(time.Minute).Should(Succeed())
	return record
}

// pull begins a pull, and returns what is in the disk at its point in time. The guest writes after that.
func (g *pullingGuest) pull(intent *backup.Intent) (content []byte) {
	GinkgoHelper()
	g.run("mount -o remount,ro /mnt/data; sync")
	content, err := os.ReadFile(g.image)
	Expect(err).NotTo(HaveOccurred())
	Expect(g.write(intent, v1.DiskBackupRunning)).To(And(HaveField("Pull", true), HaveField("Problem", "")))
	name := launcherpod.BackupSocketName(intent.ID)
	Expect(os.Link(g.daemon.Host(filepath.Join(launcherpod.SocketsDir, name)), filepath.Join(g.socketDir(), name))).
		To(Succeed())
	g.expectWrites(intent.ID)
	return content
}

// expectWrites lets the guest overwrite what it has, and expects that it succeeds and that the image has it.
func (g *pullingGuest) expectWrites(mark string) {
	GinkgoHelper()
	g.prepareLines(mark, 3)
	Expect(g.run("mount -o remount,rw /mnt/data && cat $lines > /mnt/data/file && sync && echo writ''ten")).To(
		ContainSubstring("written"))
	content, err := os.ReadFile(g.image)
	Expect(err).NotTo(HaveOccurred())
	Expect(bytes.Contains(content, bytes.Repeat([]byte(mark+"\n"), 1000))).
		To(BeTrue(), "the guest's writes are not in the image")
}

func intentToPull(id string, exporter backup.Exporter) *backup.Intent {
	return &backup.Intent{
		ID: id, UtilityVolume: "target", Directory: "vm/" + id, FilePrefix: id + "-", Volumes: []string{"data"}, Pull: true,
		Exporter: exporter, Checkpoint: "of-" + id,
	}
}

var _ = Describe("A pull of a running guest's disks", Label("libvirt"), func() {
	It("serves what was in a disk, and never lets the guest's writes fail", func() {
		g := startPullingGuest()
		g.prepareLines("before", 3)
		g.run("cat $lines > /mnt/data/file; sync")

		By("refusing a claim that the scratch files could fill")
		record := g.write(intentToPull("small", g.exporter.address), v1.DiskBackupFailed)
		Expect(record.Problem).To(And(ContainSubstring("the claim"), ContainSubstring("too little room")))
		AddReportEntry("refused", record.Problem)
		g.expectWrites("small")

		By("serving everything")
		g.inPod(func() error { return unix.Mount("", g.target, "", unix.MS_REMOUNT, "size=64m") })
		all := intentToPull("all", g.exporter.address)
		content := g.pull(all)
		Expect(g.scratchFiles(all)).To(ConsistOf("all-data.scratch.qcow2"))
		full := g.exporter.read("data")
		Expect(bytes.Equal(full, content)).To(BeTrue(), "the exporter reads something else than was in the disk")
		Expect(bytes.Equal(g.exporter.read("data"), content)).
			To(BeTrue(), "the exporter reads something else the second time")

		By("ending when it is canceled")
		all.Canceled = true
		Expect(g.write(all, v1.DiskBackupSucceeded)).To(And(
			HaveField("Canceled", true), HaveField("Pull", true), HaveField("Checkpoint", "of-all"),
			HaveField("EndedAt", Not(BeNil()))))
		Expect(g.scratchFiles(all)).To(BeEmpty())
		g.expectWrites("between")

		By("serving what has changed, also after the agent was replaced")
		g.stopAgent()
		g.startAgent()
		g.settle(func(*v1.VirtualMachineInstance) bool {
			_, err := g.manager.Connect(hypervisor.PodRef{UID: agentPodUID, VMI: vmiKey})
			return err == nil
		})
		changes := intentToPull("changes", g.exporter.address)
		changes.Since, changes.Kept = "of-all", []string{"of-all"}
		content = g.pull(changes)
		Expect(g.vmi().Status.DiskBackupRecord.Since).To(Equal("of-all"))
		parts := g.exporter.changed("data")
		Expect(parts).NotTo(BeEmpty())
		now := g.exporter.read("data")
		Expect(bytes.Equal(now, content)).To(BeTrue(), "the exporter reads something else than was in the disk")
		changed := int64(0)
		for _, part := range parts {
			copy(full[part.Start:part.Start+part.Length], now[part.Start:])
			changed += part.Length
		}
		Expect(bytes.Equal(full, content)).To(BeTrue(), "the full pull and the changes are not what was in the disk")
		Expect(changed).To(BeNumerically("<", len(content)))
		AddReportEntry("changed bytes", changed)

		By("connecting to an exporter that replaces another")
		before := g.exporter.accepted.Load()
		changes.Exporter.UID = "another"
		g.write(changes, v1.DiskBackupRunning)
		Eventually(g.exporter.accepted.Load).Should(BeNumerically(">=", before+4))

		By("ending before something else fills the claim")
		g.inPod(func() error {
			return os.WriteFile(filepath.Join(g.target, "other"), make([]byte, 50<<20), 0o600)
		})
		record = g.expectStage("changes", v1.DiskBackupFailed)
		Expect(record.Problem).To(ContainSubstring("something else has filled the claim"))
		AddReportEntry("ended", record.Problem)
		Expect(g.scratchFiles(changes)).To(BeEmpty())
		g.expectWrites("after")
		Expect(g.guestRuns()).To(BeTrue())
	})

	It("fails if QEMU stops serving the disks", extended(2), func() {
		g := startPullingGuest()
		g.inPod(func() error { return unix.Mount("", g.target, "", unix.MS_REMOUNT, "size=64m") })
		intent := intentToPull("ended", g.exporter.address)
		g.pull(intent)
		Expect(g.conn.AbortBackup(GinkgoT().Context(), g.domain)).To(Succeed())
		Expect(g.expectStage("ended", v1.DiskBackupFailed).Problem).
			To(ContainSubstring("although the backup was not canceled"))
		_, err := g.conn.OpenPull(GinkgoT().Context(), "ended")
		Expect(errors.Is(err, hypervisor.ErrNotRunning)).To(BeTrue(), "%v", err)
	})
})
