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

// quietLine is a line of libvirtd's log that is expected and harmless. A line that says more than begin and end is
// another one: a guest has a say in what stands between.
type quietLine struct {
	level, begin, end string
	// why it need not be read.
	why string
}

// quietLines are left out of the Pod's log unless it is verbose.
var quietLines = []quietLine{
	{"info", "libvirt version: ", "", "the preamble of the first message; the image says the version"},
	{"info", "hostname: ", "", "the preamble of the first message; the Pod's name says it"},
	{"error", "virNetSocketReadWire:", " : End of file while reading data: Input/output error",
		"a client has closed its connection, as the node agent does after every stream, and a probe after every look"},
	{"error", "virHostCPUGetCPUID:", " : Unable to open /dev/kvm: No such file or directory",
		"under emulation there is no /dev/kvm; a guest that needs it fails to start with an error of its own"},
	{"warning", "qemuTPMVirCommandSwtpmAddTPMState:", " : This swtpm version doesn't support explicit locking",
		"it locks a TPM's state by itself; only a state that two hosts share needs to be told"},
	{"warning", "qemuDomainObjTaintMsg:", " is tainted: custom-ga-command",
		"the node agent asks the guest's agent with commands for which libvirt has no call"},
}

// expectedLine says that a line of libvirtd's log tells nothing. It looks like
// "2026-01-02 03:04:05.678+0000: 22: error : function:1467 : text".
func expectedLine(line []byte) bool {
	_, rest, _ := strings.Cut(string(line), ": ")
	thread, rest, _ := strings.Cut(rest, ": ")
	if _, err := strconv.Atoi(thread); err != nil {
		return false
	}
	level, text, found := strings.Cut(strings.TrimRight(rest, "\r\n"), " : ")
	if !found {
		return false
	}
	for _, quiet := range quietLines {
		if level == quiet.level && strings.HasPrefix(text, quiet.begin) && strings.HasSuffix(text, quiet.end) {
			return true
		}
	}
	return false
}

// logFilter is one of libvirtd's log filters: the least priority, and what a source's name contains or matches.
var logFilter = regexp.MustCompile(`^[1-4]:[^:\s]+$`)

// logEnvironment makes libvirtd log what passes the filters. libvirtd takes its environment before its configuration, and would
// not start with malformed filters.
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

// longestLine is the length from which a line is relayed in pieces and not judged.
const longestLine = 4096

// relayLog copies libvirtd's log until it ends. It goes on reading when it cannot write: libvirtd must neither wait for a
// container runtime that restarts nor die of it.
func relayLog(w io.Writer, r io.Reader, verbose bool) {
	reader := bufio.NewReaderSize(r, longestLine)
	whole := true // the piece begins a line
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 && (verbose || !whole || errors.Is(err, bufio.ErrBufferFull) || !expectedLine(line)) {
			_, _ = w.Write(line)
		}
		whole = bytes.HasSuffix(line, []byte("\n"))
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}
