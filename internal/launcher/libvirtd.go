// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// readyTimeout is how long libvirtd may take to start. It takes 0.1 s, or 1 s if it probes QEMU, and longer on a
	// node on which many VMs start.
	readyTimeout = 3 * time.Minute
	// dialInterval is the interval of attempts to connect while the socket exists and libvirtd does not listen yet: a few
	// milliseconds after which there is no event.
	dialInterval = 10 * time.Millisecond
)

// prepare creates the directories that libvirtd and QEMU write to, with those that only a guest needs (guestDirs), and
// installs libvirt's configuration.
func prepare(log logr.Logger, guestDirs ...string) error {
	qemuConf := filepath.Join(xdgConfig, "libvirt", "qemu.conf")
	dirs := []string{homeDir, xdgRuntime, xdgCache, tempDir, launcherpod.ConsoleLockDir, launcherpod.MigrationTLSDir,
		filepath.Dir(qemuConf)}
	for _, dir := range append(dirs, guestDirs...) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create libvirt's directories: %w", err)
		}
	}
	if err := os.Symlink(launcherpod.LibvirtSocket, launcherpod.VirtqemudSocket); err != nil &&
		!errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the link to libvirtd's socket: %w", err)
	}
	var own []string
	if os.Getenv(launcherpod.SharedStateEnv) != launcherpod.StateDir {
		own = append(own, launcherpod.StateDir)
	}
	if err := configureQEMU(qemuConfig, qemuConf, own...); err != nil {
		return fmt.Errorf("put libvirt's configuration of QEMU in place: %w", err)
	}
	if err := prepareState(launcherpod.StateDir, launcherpod.TPMAuthorityDir); err != nil {
		return err
	}
	if err := FillQEMUCache(xdgCache); err != nil {
		// libvirt then probes QEMU, which takes half a second.
		log.Info("Not using the image's QEMU capabilities", "reason", err.Error())
	}
	return nil
}

// daemon is libvirtd and the copying of its log.
type daemon struct {
	*reaper.Child
	// relayed is closed when the log is copied to its end.
	relayed <-chan struct{}
}

// startLibvirtd starts libvirtd in session mode, in which it needs no privileges.
func startLibvirtd(log logr.Logger, children *reaper.Reaper, filters string) (*daemon, error) {
	logging, err := logEnvironment(filters)
	if err != nil {
		log.Error(err, "libvirtd's log has its warnings and errors only")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Close() }()
	child, err := children.Start([]string{libvirtdBinary, "--config", libvirtdConfig}, &os.ProcAttr{
		Dir: launcherpod.RuntimeDir,
		Env: append([]string{
			"PATH=/usr/sbin:/usr/bin", "HOME=" + homeDir, "TMPDIR=" + tempDir,
			"XDG_RUNTIME_DIR=" + xdgRuntime, "XDG_CONFIG_HOME=" + xdgConfig, "XDG_CACHE_HOME=" + xdgCache,
		}, logging...),
		Files: []*os.File{null, write, write},
	})
	if err != nil {
		_ = read.Close()
		return nil, err
	}
	relayed := make(chan struct{})
	go func() {
		defer close(relayed)
		defer func() { _ = read.Close() }()
		relayLog(os.Stderr, read, log.V(1).Enabled() || logging != nil)
	}()
	return &daemon{Child: child, relayed: relayed}, nil
}

// connect waits for libvirtd's socket and connects as soon as it listens.
func connect(ctx context.Context, socket string) (*libvirtwire.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	// If the kernel gives the user of all launchers of the node no further watch, the attempts to connect wait for the
	// socket.
	if err := waitForFile(ctx, socket); err != nil && !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENOSPC) {
		return nil, err
	}
	for {
		client, err := libvirtwire.Dial(ctx, socket)
		if err == nil {
			return client, nil
		}
		if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("connect to libvirtd: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to libvirtd: %w", err)
		case <-time.After(dialInterval):
		}
	}
}

// waitForFile returns once a file exists. It starts the watch before it checks the file, so that it misses no creation.
func waitForFile(ctx context.Context, file string) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch for %s: %w", file, err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch for %s: %w", file, err)
	}
	for {
		if _, err := os.Lstat(file); err == nil {
			return nil
		}
		select {
		case <-watcher.Events:
		case err := <-watcher.Errors:
			return fmt.Errorf("watch for %s: %w", file, err)
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", file, ctx.Err())
		}
	}
}

// qemuPID returns the process id that libvirt has recorded for a running domain; 0 if there is none.
func qemuPID(domain string) int {
	content, err := os.ReadFile(filepath.Join(xdgRuntime, "libvirt", "qemu", "run", domain+".pid")) //nolint:gosec // libvirt's file
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// harmlessLine is a line of libvirtd's log that is expected and harmless, identified by its begin and end: a guest may
// influence the text in between.
type harmlessLine struct {
	level, begin, end string
	// why is the reason why it is harmless.
	why string
}

// harmlessLines are omitted from the Pod's log unless it is verbose.
var harmlessLines = []harmlessLine{
	{"info", "libvirt version: ", "", "the preamble of the first message; the version is that of the image"},
	{"info", "hostname: ", "", "the preamble of the first message; it is the Pod's name"},
	{"error", "virNetSocketReadWire:", " : End of file while reading data: Input/output error",
		"a client has closed its connection, as the node agent does after every stream, and a probe when it has finished"},
	{"error", "virHostCPUGetCPUID:", " : Unable to open /dev/kvm: No such file or directory",
		"under emulation there is no /dev/kvm; a guest that needs it fails to start with an error of its own"},
	{"warning", "qemuTPMVirCommandSwtpmAddTPMState:", " : This swtpm version doesn't support explicit locking",
		"it locks a TPM's state by itself; explicit locking is for a state that two hosts share"},
	{"warning", "qemuDomainObjTaintMsg:", " is tainted: custom-ga-command",
		"the node agent uses guest agent commands for which libvirt has no call"},
}

// isHarmless reports whether a line of libvirtd's log is one of harmlessLines. A line looks like
// "2026-01-02 03:04:05.678+0000: 22: error : function:1467 : text".
func isHarmless(line []byte) bool {
	_, rest, _ := strings.Cut(string(line), ": ")
	thread, rest, _ := strings.Cut(rest, ": ")
	if _, err := strconv.Atoi(thread); err != nil {
		return false
	}
	level, text, found := strings.Cut(strings.TrimRight(rest, "\r\n"), " : ")
	if !found {
		return false
	}
	for _, known := range harmlessLines {
		if level == known.level && strings.HasPrefix(text, known.begin) && strings.HasSuffix(text, known.end) {
			return true
		}
	}
	return false
}

// logFilter matches one of libvirtd's log filters: the lowest priority, and a part of or a pattern for the name of a
// source.
var logFilter = regexp.MustCompile(`^[1-4]:[^:\s]+$`)

// logEnvironment returns the environment with which libvirtd logs what passes the filters. It has precedence over
// libvirtd's configuration. libvirtd does not start with malformed filters.
func logEnvironment(filters string) ([]string, error) {
	fields := strings.Fields(filters)
	for _, filter := range fields {
		if !logFilter.MatchString(filter) {
			return nil, fmt.Errorf(
				"%q is no log filter of libvirt's: give PRIORITY:NAME, the priority from 1 (debug) to 4 (error)", filter)
		}
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return []string{"LIBVIRT_LOG_FILTERS=" + strings.Join(fields, " "), "LIBVIRT_LOG_OUTPUTS=1:stderr"}, nil
}

// maxLine is the longest line that is checked. A longer one is copied in parts.
const maxLine = 4096

// relayLog copies libvirtd's log until its end. It continues to read if it cannot write, because the container runtime
// restarts: libvirtd must not block or terminate.
func relayLog(w io.Writer, r io.Reader, verbose bool) {
	reader := bufio.NewReaderSize(r, maxLine)
	whole := true // The next part is the start of a line.
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 && (verbose || !whole || errors.Is(err, bufio.ErrBufferFull) || !isHarmless(line)) {
			_, _ = w.Write(line)
		}
		whole = bytes.HasSuffix(line, []byte("\n"))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// machineType is the machine type whose capabilities are reported: the default of the architecture.
const machineType = "q35"

// WriteCapabilities starts libvirtd as for a VM and writes its capabilities on this node to capabilities.xml,
// domcapabilities.xml and supported_features.xml in a directory. A container of the node agent's Pod with the launcher
// image runs it, since they depend on libvirt and QEMU of that image.
func WriteCapabilities(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := logr.FromContextOrDiscard(ctx)
	children := reaper.New()
	go children.Run(ctx)
	// The files of an earlier container of the Pod: the node may have changed since.
	for _, name := range capabilityFiles {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove earlier capabilities: %w", err)
		}
	}
	if err := prepare(log); err != nil {
		return err
	}
	warnOfKVM(log)
	libvirtd, err := startLibvirtd(log, children, "")
	if err != nil {
		return fmt.Errorf("start libvirtd: %w", err)
	}
	defer stopLibvirtd(log, libvirtd)
	client, err := connect(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return err
	}
	defer client.Close()
	return SaveCapabilities(ctx, client, dir)
}

// warnOfKVM logs that the container has KVM and may not open it: libvirt then reports the capabilities of emulation.
func warnOfKVM(log logr.Logger) {
	const device = "/dev/kvm"
	kvm, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case err == nil:
		_ = kvm.Close()
	case errors.Is(err, os.ErrPermission):
		log.Error(err, "This node has KVM, but its device cannot be opened: no CPU model and no feature of KVM is reported. "+
			"Configure the container runtime with device_ownership_from_security_context, or permit all users to open the "+
			"device", "device", device)
	case !errors.Is(err, os.ErrNotExist):
		log.Error(err, "KVM cannot be used: no CPU model and no feature of it is reported", "device", device)
	}
}

// capabilitySource is the part of libvirtd that reports capabilities.
type capabilitySource interface {
	Capabilities(ctx context.Context) (string, error)
	DomainCapabilities(ctx context.Context, machine string) (string, error)
	ExpandCPU(ctx context.Context, machine, cpu string) (string, error)
}

// SaveCapabilities writes the files of WriteCapabilities with what a libvirtd reports, when it has read all: an
// incomplete report could not be recognized.
func SaveCapabilities(ctx context.Context, source capabilitySource, dir string) error {
	host, err := source.Capabilities(ctx)
	if err != nil {
		return fmt.Errorf("read the host's capabilities from libvirtd: %w", err)
	}
	domain, err := source.DomainCapabilities(ctx, machineType)
	if err != nil {
		return fmt.Errorf("read the capabilities of %s from libvirtd: %w", machineType, err)
	}
	cpu, err := source.ExpandCPU(ctx, machineType, hostModel(domain))
	if err != nil {
		return fmt.Errorf("read the features of the host's CPU from libvirtd: %w", err)
	}
	for name, text := range map[string]string{
		launcherpod.HostCapabilities: host, launcherpod.DomainCapabilities: domain, launcherpod.SupportedFeatures: cpu,
	} {
		if err := replaceFile(filepath.Join(dir, name), text); err != nil {
			return fmt.Errorf("write the node's capabilities: %w", err)
		}
	}
	return nil
}

// hostModel returns the CPU of guests with the model host-model, which is among the capabilities for domains.
func hostModel(capabilities string) string {
	_, mode, _ := strings.Cut(capabilities, "<mode name='host-model' supported='yes'>")
	mode, _, _ = strings.Cut(mode, "</mode>")
	return "<cpu>" + mode + "</cpu>"
}

// capabilityFiles are the files with the node's capabilities.
var capabilityFiles = []string{
	launcherpod.HostCapabilities, launcherpod.DomainCapabilities, launcherpod.SupportedFeatures,
}

// replaceFile writes a file that a reader sees with its old or its new content.
func replaceFile(name, text string) error {
	unfinished := name + ".new"
	if err := os.WriteFile(unfinished, []byte(text), 0o644); err != nil { //nolint:gosec // for the agent, which is another user
		return err
	}
	return os.Rename(unfinished, name)
}

// CapabilitiesWritten returns an error unless WriteCapabilities has written the files in a directory.
func CapabilitiesWritten(dir string) error {
	for _, name := range capabilityFiles {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
