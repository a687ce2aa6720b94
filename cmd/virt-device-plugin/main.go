// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-device-plugin is the part of virt-broker's Pod that the kubelet calls: it advertises the devices for
// guests, and reads which CPUs the kubelet has assigned. It is root, as the kubelet's directories are root's, and has
// no capability.
package main

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/broker/device"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func main() {
	var podLogsDir, devDir, pluginDir string
	var maxDevices int
	server.Main(server.Program{
		Name: brokerapi.DevicePlugin,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&podLogsDir, "pod-logs-dir", "/var/log/pods",
				"directory in which the kubelet creates a directory for the logs of each Pod; only names are read")
			fs.StringVar(&devDir, "dev-dir", "/host-dev", "path at which the node's /dev is mounted")
			fs.StringVar(&pluginDir, "device-plugin-dir", "/var/lib/kubelet/device-plugins",
				"directory of the kubelet's sockets for device plugins, which is the same for every kubelet root")
			fs.IntVar(&maxDevices, "max-devices", 1000, "maximum number of VMIs on the node")
		},
		Start: func(s server.Settings) (server.Verbs, func(context.Context) error, error) {
			if maxDevices < 1 {
				return nil, nil, fmt.Errorf("--max-devices is %d: it must be at least 1", maxDevices)
			}
			devices := device.NewManager(device.Options{PluginDir: pluginDir, DevDir: devDir, Count: maxDevices})
			kubelet := device.PodResources{Dir: filepath.Join(s.KubeletRoot, "pod-resources")}
			return device.Verbs(devices, kubelet, podLogsDir), devices.Start, nil
		},
	})
}
