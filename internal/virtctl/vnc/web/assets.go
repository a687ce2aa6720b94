// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package web

import (
	"embed"
	"errors"
	"io/fs"
)

// embedded contains the page, and the libraries that hack/web-assets.sh copies to assets.
//
//go:embed page assets
var embedded embed.FS

// ErrNoAssets reports that virtctl was built without the page's libraries.
var ErrNoAssets = errors.New("this virtctl was built without noVNC and xterm.js, which --web shows.\n" +
	"Build it with them: apt-get install novnc node-xterm && make virtctl\n" +
	"Until then: vnc --proxy-only for a viewer of your own, and the command console")

// required contains files without which the page does not work.
var required = []string{"assets/novnc/core/rfb.js", "assets/xterm/xterm.js", "assets/xterm/xterm.css"}

// Assets returns the page's files.
func Assets() (fs.FS, error) {
	for _, name := range required {
		if _, err := fs.Stat(embedded, name); err != nil {
			return nil, ErrNoAssets
		}
	}
	return embedded, nil
}
