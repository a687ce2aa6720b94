// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
)

const (
	// lostAndFound belongs to the file system, and may be opened by root only.
	lostAndFound = "lost+found"
	// batch is how many entries of a directory are read at a time. A directory may have millions.
	batch = 256
	// maxDepth is how deep a directory may be. Each level keeps two files open.
	maxDepth = 128
)

// files serves the files of a volume.
type files struct {
	mount string
	// prefix is the path of the root directory, without a slash at its end.
	prefix string
}

// browse serves one file, with ranges, or lists a directory. Links are not followed at the end of a path, nor out of
// the volume.
func (f files) browse(w http.ResponseWriter, r *http.Request) error {
	name, isDirectory, err := relative(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, f.prefix), "/"))
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(f.mount)
	if err != nil {
		return err
	}
	defer closeAll(root)
	info, err := root.Lstat(name)
	if err != nil {
		return absent(err)
	}
	if info.IsDir() {
		return list(w, r, root, name)
	}
	if isDirectory {
		return &problem{http.StatusNotFound, "it is not a directory"}
	}
	file, info, err := openFile(root, name)
	if err != nil {
		return absent(err)
	}
	defer closeAll(file)
	w.Header().Set("Etag", fmt.Sprintf(`"%x-%x-%x"`, inode(info), info.Size(), info.ModTime().UnixNano()))
	// A browser must not execute what another tenant has written, and its type is not guessed from its content.
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), io.NewSectionReader(file, 0, info.Size()))
	return nil
}

// relative returns the name of a file below the root, and whether the path is that of a directory.
func relative(requested string) (name string, isDirectory bool, err error) {
	isDirectory = requested == "" || strings.HasSuffix(requested, "/")
	requested = strings.TrimSuffix(requested, "/")
	if requested == "" {
		return ".", true, nil
	}
	if !fs.ValidPath(requested) || strings.ContainsRune(requested, 0) {
		return "", false, &problem{http.StatusBadRequest, "the path is not valid"}
	}
	return requested, isDirectory, nil
}

// absent converts the error of opening a file to the error for the client.
func absent(err error) error {
	var known *problem
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return &problem{http.StatusNotFound, "there is no such file"}
	case errors.Is(err, fs.ErrPermission):
		return &problem{http.StatusForbidden, "the exporter may not read it"}
	default:
		return err
	}
}

// list lists a directory as a page of links, in the order of the file system: it may have too many entries to be
// sorted. A path without a slash at its end is not redirected to the one with it: the address would have to repeat the
// query, which may contain the token.
func list(w http.ResponseWriter, r *http.Request, root *os.Root, name string) error {
	dir, err := openDirectory(root, name)
	if err != nil {
		return absent(err)
	}
	defer closeAll(dir)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.WriteString(w,
		"<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n"); err != nil {
		return err
	}
	base := "./" // keeps a name with a colon from being interpreted as a scheme
	if !strings.HasSuffix(r.URL.Path, "/") {
		base += url.PathEscape(path.Base(r.URL.Path)) + "/" // Links are relative to the parent directory.
	}
	err = entries(dir, func(entry fs.DirEntry) error {
		shown := entry.Name()
		if name == "." && shown == lostAndFound {
			return nil
		}
		if entry.IsDir() {
			shown += "/"
		}
		_, err := fmt.Fprintf(w, "<a href=\"%s%s\">%s</a>\n", base, (&url.URL{Path: shown}).EscapedPath(),
			html.EscapeString(strings.ToValidUTF8(shown, "�")))
		return err
	})
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, "</pre>\n")
	return err
}

// entries calls a function for each entry of a directory.
func entries(dir *os.File, each func(fs.DirEntry) error) error {
	for {
		read, err := dir.ReadDir(batch)
		for _, entry := range read {
			if err := each(entry); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// openDirectory opens a directory. It opens nothing else.
func openDirectory(root *os.Root, name string) (*os.File, error) {
	before, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, errIrregular
	}
	dir, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat()
	if err == nil && !os.SameFile(before, info) {
		err = errIrregular
	}
	if err != nil {
		closeAll(dir)
		return nil, err
	}
	return dir, nil
}

// archive serves all files as a compressed tar archive. It fails if a file cannot be archived, so that clients detect
// an incomplete archive.
func (f files) archive(w http.ResponseWriter, r *http.Request) error {
	root, err := os.OpenRoot(f.mount)
	if err != nil {
		return err
	}
	defer closeAll(root)
	w.Header().Set("Content-Type", "application/gzip")
	if r.Method == http.MethodHead {
		return nil
	}
	compressed, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	out := tar.NewWriter(compressed)
	if err := (archiver{out}).whole(root); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

// archiver writes files into an archive. Their names begin with "./", as those of KubeVirt's archives: tar does so for
// a directory.
type archiver struct{ out *tar.Writer }

// whole adds the root directory and all that is in it.
func (a archiver) whole(root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := a.header(info, "", ""); err != nil {
		return err
	}
	return a.directory(root, "", 0)
}

// directory adds the entries of a directory to the archive, under this name.
func (a archiver) directory(root *os.Root, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("directory %q: there are more than %d levels", name, maxDepth)
	}
	dir, err := root.Open(".")
	if err != nil {
		return fmt.Errorf("directory %q: %w", name, err)
	}
	defer closeAll(dir)
	return entries(dir, func(entry fs.DirEntry) error {
		if depth == 0 && entry.Name() == lostAndFound {
			return nil
		}
		full := path.Join(name, entry.Name())
		if err := a.entry(root, entry.Name(), full, depth); err != nil {
			return fmt.Errorf("file %q: %w", full, err)
		}
		return nil
	})
}

// entry adds an entry of a directory. Links are added as such; devices, sockets and FIFOs have no content and are left
// out.
func (a archiver) entry(root *os.Root, base, full string, depth int) error {
	info, err := root.Lstat(base)
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return a.file(root, base, full)
	case mode.IsDir():
		if err := a.header(info, "", full+"/"); err != nil {
			return err
		}
		inner, err := root.OpenRoot(base)
		if err != nil {
			return err
		}
		defer closeAll(inner)
		opened, err := inner.Stat(".")
		if err != nil {
			return err
		}
		if !os.SameFile(info, opened) {
			return errors.New("it was replaced while it was read")
		}
		return a.directory(inner, full, depth+1)
	case mode&fs.ModeSymlink != 0:
		target, err := root.Readlink(base)
		if err != nil {
			return err
		}
		return a.header(info, target, full)
	default:
		return nil
	}
}

func (a archiver) file(root *os.Root, base, full string) error {
	file, info, err := openFile(root, base)
	if err != nil {
		return err
	}
	defer closeAll(file)
	if err := a.header(info, "", full); err != nil {
		return err
	}
	return copyExactly(a.out, file, info.Size())
}

func (a archiver) header(info fs.FileInfo, target, name string) error {
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name = "./" + name
	header.Uname, header.Gname = "", "" // the names in the exporter's image have no meaning
	return a.out.WriteHeader(header)
}
