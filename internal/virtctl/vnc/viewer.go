// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vnc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// kind is a known viewer.
type kind struct {
	name string
	// programs are its names on the PATH, or patterns of its path on macOS.
	programs []string
	// arguments returns the arguments by which it connects to an address.
	arguments func(address string) []string
}

func plain(address string) []string { return []string{address} }

// kinds are the known viewers in order of preference.
var kinds = []kind{
	{"remote-viewer", []string{"remote-viewer"}, func(address string) []string { return []string{"vnc://" + address} }},
	{"tiger", []string{"vncviewer", "/Applications/TigerVNC Viewer*.app/Contents/MacOS/TigerVNC Viewer"}, plain},
	{"chicken", []string{"/Applications/Chicken.app/Contents/MacOS/Chicken"}, plain},
	{"real", []string{"/Applications/VNC Viewer.app/Contents/MacOS/vncviewer"}, func(address string) []string {
		return []string{address, "-WarnUnencrypted=0", "-Shared=0", "-ShareFiles=0"}
	}},
}

// viewer is the viewer that the user chose, if any.
type viewer struct{ kind, path string }

func (v *viewer) addFlags(flags *pflag.FlagSet) {
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		names = append(names, k.name)
	}
	flags.StringVar(&v.kind, "vnc-type", "", "The viewer: "+strings.Join(names, ", ")+". By default the first that is installed.")
	flags.StringVar(&v.path, "vnc-path", "", "The viewer's program, if it is not on the PATH. Needs --vnc-type.")
}

// find returns a function that runs the viewer with an address until it exits.
func (v *viewer) find() (func(context.Context, string) error, error) {
	if v.path != "" && v.kind == "" {
		return nil, errors.New("--vnc-path needs --vnc-type, which determines the viewer's arguments")
	}
	candidates := kinds
	if v.kind != "" {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == v.kind })
		if i < 0 {
			return nil, fmt.Errorf("--vnc-type %q is not known", v.kind)
		}
		candidates = kinds[i : i+1]
	}
	for _, k := range candidates {
		if program := v.program(k); program != "" {
			return func(ctx context.Context, address string) error { return show(ctx, program, k.arguments(address)) }, nil
		}
	}
	return nil, fmt.Errorf("no VNC viewer was found on this machine (%s)", runtime.GOOS)
}

// program returns the viewer's path, or "" if it is not installed.
func (v *viewer) program(k kind) string {
	if v.path != "" {
		return v.path
	}
	for _, program := range k.programs {
		if !strings.Contains(program, "/") {
			if found, err := exec.LookPath(program); err == nil {
				return found
			}
			continue
		}
		if found, err := filepath.Glob(program); err == nil && len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

func show(ctx context.Context, program string, arguments []string) error {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // the user's own viewer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = os.Environ()
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s failed: %w\n%s", program, err, strings.TrimSpace(output.String()))
	}
	return nil
}
