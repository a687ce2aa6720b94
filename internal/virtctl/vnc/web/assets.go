// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package web

import (
	"embed"
	"errors"
	"io/fs"
)

// embedded has the page, which is ours, and what hack/web-assets.sh copied, which is not.
//
//go:embed page assets
var embedded embed.FS

// ErrNoAssets says that the page's parts were not there when the program was built.
var ErrNoAssets = errors.New("this virtctl was built without noVNC and xterm.js, which --web shows.\n" +
	"Build it with them: apt-get install novnc node-xterm && make virtctl\n" +
	"Until then: vnc --proxy-only for a viewer of your own, and the command console")

// needed are the files without which the page does not work.
var needed = []string{"assets/novnc/core/rfb.js", "assets/xterm/xterm.js", "assets/xterm/xterm.css"}

// Assets are the files of the page.
func Assets() (fs.FS, error) {
	for _, name := range needed {
		if _, err := fs.Stat(embedded, name); err != nil {
			return nil, ErrNoAssets
		}
	}
	return embedded, nil
}
