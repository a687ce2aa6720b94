// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package version describes the build.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version is the version of this build. The build sets it with -ldflags -X.
var Version = "devel"

// Info describes the build, in the format that KubeVirt's clients expect of virt-api.
type Info struct {
	// GitVersion is Version.
	GitVersion string `json:"gitVersion"`
	// GitCommit, GitTreeState and BuildDate describe the source. They are empty if the build was not from a Git
	// repository.
	GitCommit    string `json:"gitCommit"`
	GitTreeState string `json:"gitTreeState"`
	BuildDate    string `json:"buildDate"`
	// GoVersion, Compiler and Platform describe the Go toolchain and the target.
	GoVersion string `json:"goVersion"`
	Compiler  string `json:"compiler"`
	Platform  string `json:"platform"`
}

// String returns KubeVirt's format, which scripts parse.
func (i Info) String() string {
	return fmt.Sprintf("version.Info{GitVersion:%q, GitCommit:%q, GitTreeState:%q, BuildDate:%q, GoVersion:%q, Compiler:%q, Platform:%q}",
		i.GitVersion, i.GitCommit, i.GitTreeState, i.BuildDate, i.GoVersion, i.Compiler, i.Platform)
}

// Get returns the description of this build.
func Get() Info {
	info := Info{
		GitVersion: Version, GoVersion: runtime.Version(), Compiler: runtime.Compiler,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.GitCommit = setting.Value
		case "vcs.time":
			info.BuildDate = setting.Value
		case "vcs.modified":
			info.GitTreeState = "clean"
			if setting.Value == "true" {
				info.GitTreeState = "dirty"
			}
		}
	}
	return info
}
