// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/vireo-project/vireo/hack/cluster/csi/internal/loop"
	"github.com/vireo-project/vireo/hack/cluster/csi/internal/pool"
)

const (
	// insideVariable is set in the process that runs the tests, in a mount namespace of its own.
	insideVariable = "VIREO_CSI_TEST_INSIDE"
	// serveVariable makes the test program serve the controller of a pool, to be killed.
	serveVariable = "VIREO_CSI_TEST_SERVE"
)

// TestMain runs the tests of root in a mount namespace of their own, so that no mount is left however they end.
func TestMain(m *testing.M) {
	if dir := os.Getenv(serveVariable); dir != "" {
		fmt.Fprintln(os.Stderr, serveController(dir))
		os.Exit(1)
	}
	if os.Geteuid() != 0 || os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	// The signal is for the death of the thread that has started the process.
	runtime.LockOSThread()
	command := exec.Command("/proc/self/exe", os.Args[1:]...)
	command.Env = append(os.Environ(), insideVariable+"=1")
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case errors.Is(err, syscall.EPERM):
		os.Exit(m.Run()) // tests that need mounts skip
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// poolDir returns a directory in a filesystem that can clone files. It skips the test if it cannot be mounted here.
func poolDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices and mounts need root")
	}
	if os.Getenv(insideVariable) == "" {
		t.Skip("root may not make a mount namespace here")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("the kernel has no loop devices: ", err)
	}
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("xfsprogs is not installed: ", err)
	}
	dir := t.TempDir()
	image, mounted := filepath.Join(dir, "pool.img"), filepath.Join(dir, "pool")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 100*gib); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mounted, 0o700); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.xfs", "-q", "-K", image)
	run(t, "mount", "-o", "loop", image, mounted)
	t.Cleanup(func() {
		detachAll(t, mounted)
		// It fails if a device or a mount of a volume is left.
		run(t, "umount", mounted)
	})
	return mounted
}

func detachAll(t *testing.T, dir string) {
	t.Helper()
	disks, err := filepath.Glob(filepath.Join(dir, "volumes", "*", "disk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range disks {
		disk, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(loop.Detach(disk), disk.Close()); err != nil {
			t.Error(err)
		}
	}
}

func run(t *testing.T, command ...string) string {
	t.Helper()
	output, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(command, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}

// world is a controller and two nodes of one machine.
type world struct {
	*testing.T

	dir        string
	pool       *pool.Pool
	controller *Controller
	nodes      [2]*Node
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: poolDir(t)}
	w.start()
	t.Cleanup(w.stop)
	return w
}

func (w *world) start() {
	w.Helper()
	var err error
	if w.pool, err = pool.Open(w.dir); err != nil {
		w.Fatal(err)
	}
	if w.controller, err = NewController(w.pool); err != nil {
		w.Fatal(err)
	}
	for i := range w.nodes {
		if w.nodes[i], err = NewNode(w.pool, fmt.Sprintf("node%d", i+1)); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) stop() {
	w.Helper()
	if err := w.pool.Close(); err != nil {
		w.Error(err)
	}
}

// restart is what happens if the controller is killed, and starts again.
func (w *world) restart() {
	w.Helper()
	w.stop()
	w.start()
}

func capability(block bool, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}
	}
	return c
}

const (
	once = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	pod  = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	many = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

// claim is a volume that a test uses.
type claim struct {
	world *world
	id    string
	use   *csi.VolumeCapability
}

func (w *world) create(name string, use *csi.VolumeCapability, size int64, source *csi.VolumeContentSource) claim {
	w.Helper()
	response, err := w.controller.CreateVolume(w.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{use}, VolumeContentSource: source,
		CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	})
	if err != nil {
		w.Fatal(err)
	}
	return claim{world: w, id: response.GetVolume().GetVolumeId(), use: use}
}

func (w *world) snapshot(name string, of claim) *csi.VolumeContentSource {
	w.Helper()
	response, err := w.controller.CreateSnapshot(w.Context(),
		&csi.CreateSnapshotRequest{Name: name, SourceVolumeId: of.id})
	if err != nil {
		w.Fatal(err)
	}
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: response.GetSnapshot().GetSnapshotId()},
	}}
}

func (c claim) attach(node int) error {
	_, err := c.world.controller.ControllerPublishVolume(c.world.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: c.id, NodeId: c.world.nodes[node].name, VolumeCapability: c.use,
	})
	return err
}

func (c claim) staging(node int) string {
	return filepath.Join(c.world.dir, "..", "staging", c.id, fmt.Sprint(node))
}

// mount attaches a volume to a node and returns its path in a Pod. It is unmounted when the test ends, at the latest.
func (c claim) mount(node int) string {
	c.world.Helper()
	if err := c.attach(node); err != nil {
		c.world.Fatal(err)
	}
	c.world.Cleanup(func() { c.unmount(node) })
	if err := c.stage(node); err != nil {
		c.world.Fatal(err)
	}
	target := c.staging(node) + "-pod"
	if err := c.publish(node, target); err != nil {
		c.world.Fatal(err)
	}
	return target
}

func (c claim) stage(node int) error {
	_, err := c.world.nodes[node].NodeStageVolume(c.world.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: c.id, StagingTargetPath: c.staging(node), VolumeCapability: c.use,
	})
	return err
}

// publish gives a Pod a volume, until the test ends at the latest.
func (c claim) publish(node int, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	c.world.Cleanup(func() { c.unpublish(node, target) })
	_, err := c.world.nodes[node].NodePublishVolume(c.world.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: c.id, StagingTargetPath: c.staging(node), TargetPath: target, VolumeCapability: c.use,
	})
	return err
}

func (c claim) unpublish(node int, target string) {
	c.world.Helper()
	if _, err := c.world.nodes[node].NodeUnpublishVolume(context.Background(),
		&csi.NodeUnpublishVolumeRequest{VolumeId: c.id, TargetPath: target}); err != nil {
		c.world.Error(err)
	}
}

// unmount undoes mount.
func (c claim) unmount(node int) {
	c.world.Helper()
	ctx, staging := context.Background(), c.staging(node)
	c.unpublish(node, staging+"-pod")
	_, err1 := c.world.nodes[node].NodeUnstageVolume(ctx,
		&csi.NodeUnstageVolumeRequest{VolumeId: c.id, StagingTargetPath: staging})
	_, err2 := c.world.controller.ControllerUnpublishVolume(ctx,
		&csi.ControllerUnpublishVolumeRequest{VolumeId: c.id, NodeId: c.world.nodes[node].name})
	if err := errors.Join(err1, err2); err != nil {
		c.world.Error(err)
	}
}

// device returns the path of the volume's device, or an empty path.
func (c claim) device() string {
	c.world.Helper()
	disk, err := c.world.pool.Volumes.Open(c.id)
	if err != nil {
		c.world.Fatal(err)
	}
	device, err := loop.Find(disk)
	if err := errors.Join(err, disk.Close()); err != nil {
		c.world.Fatal(err)
	}
	return device
}

func (c claim) expand(size int64) {
	c.world.Helper()
	if _, err := c.world.controller.ControllerExpandVolume(c.world.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: c.id, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
	}); err != nil {
		c.world.Fatal(err)
	}
}

func expectCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(coded(err)); got != want {
		t.Errorf("got the code %s, want %s: %v", got, want, err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serveController serves the controller of a pool on a socket beside it.
func serveController(dir string) error {
	p, err := pool.Open(dir)
	if err != nil {
		return err
	}
	controller, err := NewController(p)
	if err != nil {
		return err
	}
	return Serve(context.Background(), dir+".sock", quiet(), func(s grpc.ServiceRegistrar) {
		csi.RegisterIdentityServer(s, Identity{})
		csi.RegisterControllerServer(s, controller)
		csi.RegisterGroupControllerServer(s, controller)
	})
}
