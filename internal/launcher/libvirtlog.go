// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// harmlessLine is a line of libvirtd's log that is expected and harmless, identified by its begin and end: a guest may influence
// the text in between.
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

// logFilter matches one of libvirtd's log filters: the lowest priority, and a part of or a pattern for the name of a source.
var logFilter = regexp.MustCompile(`^[1-4]:[^:\s]+$`)

// logEnvironment returns the environment with which libvirtd logs what passes the filters. It has precedence over libvirtd's
// configuration. libvirtd does not start with malformed filters.
func logEnvironment(filters string) ([]string, error) {
	fields := strings.Fields(filters)
	for _, filter := range fields {
		if !logFilter.MatchString(filter) {
			return nil, fmt.Errorf("%q is no log filter of libvirt's: give PRIORITY:NAME, the priority from 1 (debug) to 4 (error)", filter)
		}
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return []string{"LIBVIRT_LOG_FILTERS=" + strings.Join(fields, " "), "LIBVIRT_LOG_OUTPUTS=1:stderr"}, nil
}

// maxLine is the longest line that is checked. A longer one is copied in parts.
const maxLine = 4096

// relayLog copies libvirtd's log until its end. It continues to read if it cannot write, because the container runtime restarts:
// libvirtd must not block or terminate.
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
