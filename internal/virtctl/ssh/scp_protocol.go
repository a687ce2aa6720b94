// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package ssh

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

const (
	// maxLine bounds a line of the protocol, and maxDepth directories in directories, whatever the guest says.
	maxLine, maxDepth = 8 << 10, 128
	// Modes of what is received with none of its own.
	fileMode, folderMode = 0o644, 0o755
)

// protocol is scp's: lines C (a file), D and E (a directory's beginning and end) and T (times), each answered with a zero byte,
// or with 1 or 2 and a message. The guest is not trusted: a name that it sends is one path element below where the user said.
type protocol struct {
	in       *bufio.Reader
	out      io.Writer
	preserve bool
}

func newProtocol(in io.Reader, out io.Writer, preserve bool) *protocol {
	return &protocol{in: bufio.NewReaderSize(in, maxLine), out: out, preserve: preserve}
}

// confirmed waits for the far side's answer.
func (p *protocol) confirmed() error {
	code, err := p.in.ReadByte()
	if err != nil {
		return fmt.Errorf("the guest's scp ended: %w", err)
	}
	if code == 0 {
		return nil
	}
	line, _ := p.line()
	return errors.New("the guest says: " + strings.TrimPrefix(cli.Plain(line), "scp: "))
}

func (p *protocol) line() (string, error) {
	line, err := p.in.ReadSlice('\n')
	return strings.TrimSuffix(string(line), "\n"), err
}

func (p *protocol) say(format string, arguments ...any) error {
	if _, err := fmt.Fprintf(p.out, format+"\n", arguments...); err != nil {
		return err
	}
	return p.confirmed()
}

func (p *protocol) confirm() error {
	_, err := p.out.Write([]byte{0})
	return err
}

// send copies a file, or a directory with all in it, to the guest.
func (p *protocol) send(path string, recursive bool) error {
	if err := p.confirmed(); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() && !recursive {
		return fmt.Errorf("%s is a directory: use --recursive", path)
	}
	return p.sendOne(path, info)
}

func (p *protocol) sendOne(path string, info fs.FileInfo) error {
	if strings.ContainsAny(info.Name(), "\n\r") {
		return fmt.Errorf("%q cannot be copied: its name has a line break", path)
	}
	if p.preserve {
		seconds := info.ModTime().Unix()
		if err := p.say("T%d 0 %d 0", seconds, seconds); err != nil {
			return err
		}
	}
	switch {
	case info.IsDir():
		return p.sendFolder(path, info)
	case info.Mode().IsRegular():
		return p.sendFile(path, info)
	default:
		return fmt.Errorf("%s is neither a file nor a directory", path)
	}
}

func (p *protocol) sendFolder(path string, info fs.FileInfo) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := p.say("D%04o 0 %s", info.Mode().Perm(), filepath.Base(absolute)); err != nil {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		child := filepath.Join(path, entry.Name())
		info, err := os.Stat(child)
		if err != nil {
			return err
		}
		if err := p.sendOne(child, info); err != nil {
			return err
		}
	}
	return p.say("E")
}

func (p *protocol) sendFile(path string, info fs.FileInfo) error {
	file, err := os.Open(path) //nolint:gosec // the user's file
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := p.say("C%04o %d %s", info.Mode().Perm(), info.Size(), info.Name()); err != nil {
		return err
	}
	if _, err := io.CopyN(p.out, file, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := p.confirm(); err != nil {
		return err
	}
	return p.confirmed()
}

// entry is a line that announces a file or a directory.
type entry struct {
	isFolder bool
	mode     fs.FileMode
	size     int64
	name     string
}

// receive copies a file, or a directory with all in it, from the guest. Into a directory that is there it goes by its name.
func (p *protocol) receive(path string, recursive bool) error {
	if err := p.confirm(); err != nil {
		return err
	}
	var modified time.Time
	got := false
	for {
		line, err := p.command()
		if errors.Is(err, io.EOF) {
			if !got {
				return errors.New("the guest sent nothing")
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch line[0] {
		case 'T':
			if modified, err = parseTimes(line); err == nil {
				err = p.confirm()
			}
		case 'C', 'D':
			got = true
			err = p.receiveTop(path, line, recursive, modified)
			modified = time.Time{}
		default:
			err = fmt.Errorf("the guest's scp says %q, which is not known", cli.Plain(line))
		}
		if err != nil {
			return err
		}
	}
}

func (p *protocol) receiveTop(path, line string, recursive bool, modified time.Time) error {
	e, err := parseEntry(line)
	if err != nil {
		return err
	}
	if e.isFolder && !recursive {
		return errors.New("the guest sends a directory: use --recursive")
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, e.name)
	}
	return p.receiveOne(path, e, modified, 0)
}

// command is the next line. An error of the far side is an error here.
func (p *protocol) command() (string, error) {
	line, err := p.line()
	if err != nil {
		return "", err
	}
	switch {
	case line == "":
		return "", errors.New("the guest's scp sent an empty line")
	case line[0] == 1 || line[0] == 2:
		return "", errors.New("the guest says: " + strings.TrimPrefix(cli.Plain(line[1:]), "scp: "))
	}
	return line, nil
}

func (p *protocol) receiveOne(path string, e entry, modified time.Time, depth int) error {
	var err error
	if e.isFolder {
		err = p.receiveFolder(path, depth)
	} else {
		err = p.receiveFile(path, e)
	}
	if err != nil || !p.preserve {
		return err
	}
	if err := os.Chmod(path, e.mode); err != nil {
		return err
	}
	if modified.IsZero() {
		return nil
	}
	return os.Chtimes(path, modified, modified)
}

func (p *protocol) receiveFolder(path string, depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%s: more than %d directories in each other", path, maxDepth)
	}
	// What is there already, other than a directory of this machine, is not followed: the guest could have sent a link.
	if info, err := os.Lstat(path); err == nil && !info.IsDir() && depth > 0 {
		return fmt.Errorf("%s is no directory", path)
	}
	if err := os.MkdirAll(path, folderMode); err != nil {
		return err
	}
	if err := p.confirm(); err != nil {
		return err
	}
	var modified time.Time
	for {
		line, err := p.command()
		if err != nil {
			return err
		}
		switch line[0] {
		case 'E':
			return p.confirm()
		case 'T':
			if modified, err = parseTimes(line); err == nil {
				err = p.confirm()
			}
		case 'C', 'D':
			var child entry
			if child, err = parseEntry(line); err == nil {
				err = p.receiveOne(filepath.Join(path, child.name), child, modified, depth+1)
			}
			modified = time.Time{}
		default:
			err = fmt.Errorf("the guest's scp says %q, which is not known", cli.Plain(line))
		}
		if err != nil {
			return err
		}
	}
}

func (p *protocol) receiveFile(path string, e entry) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, fileMode) //nolint:gosec // where the user said
	if err != nil {
		return err
	}
	if err := p.confirm(); err != nil {
		return errors.Join(err, file.Close())
	}
	_, err = io.CopyN(file, p.in, e.size)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := p.confirmed(); err != nil {
		return err
	}
	return p.confirm()
}

// parseEntry reads "C0644 12 name" or "D0755 0 name".
func parseEntry(line string) (entry, error) {
	parts := strings.SplitN(line[1:], " ", 3)
	if len(parts) != 3 {
		return entry{}, fmt.Errorf("the guest's scp says %q, which is not known", cli.Plain(line))
	}
	mode, err := strconv.ParseUint(parts[0], 8, 32)
	if err != nil {
		return entry{}, fmt.Errorf("the mode of %q: %w", cli.Plain(line), err)
	}
	size, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || size < 0 {
		return entry{}, fmt.Errorf("the size of %q is none", cli.Plain(line))
	}
	name := parts[2]
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") || !filepath.IsLocal(name) {
		return entry{}, fmt.Errorf("the guest sends a file named %q, which may be anywhere", cli.Plain(name))
	}
	return entry{isFolder: line[0] == 'D', mode: fs.FileMode(mode) & fs.ModePerm, size: size, name: name}, nil
}

// parseTimes reads "T<modified> 0 <accessed> 0".
func parseTimes(line string) (time.Time, error) {
	seconds, _, _ := strings.Cut(line[1:], " ")
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the time of %q: %w", cli.Plain(line), err)
	}
	return time.Unix(n, 0), nil
}
