// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-broker is the privileged half of the node agent. It does for virt-handler what needs privileges on the
// node, a few verbs, and has neither a token nor a network. Two other programs of its Pod have the privileges for
// networks and devices.
package main

import (
	"context"
	"flag"
	"path/filepath"

	"k8s.io/utils/cpuset"

	"github.com/vireo-project/vireo/internal/broker"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

func main() {
	var podLogsDir, devDir string
	server.Main(server.Program{
		Name: brokerapi.Broker,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&podLogsDir, "pod-logs-dir", "/var/log/pods",
				"directory in which the kubelet creates a directory for the logs of each Pod; only names are read")
			fs.StringVar(&devDir, "dev-dir", "/host-dev", "path at which the node's /dev is mounted")
		},
		Start: func(s server.Settings) (server.Verbs, func(context.Context) error, error) {
			b := broker.New(broker.Options{
				Pods: pods.New(filepath.Join(s.KubeletRoot, "pods"), nil), PodLogsDir: podLogsDir, DevDir: devDir,
				PublishedDevices: pods.PublishedDevices(s.KubeletRoot), Log: s.Log,
				ExclusiveCPUs: exclusiveCPUs(brokerapi.SocketDir(s.KubeletRoot)),
			})
			b.Start()
			return b.Verbs(), b.Sweep, nil
		},
	})
}

// exclusiveCPUs returns a function that requests a Pod's CPUs from the program which may call the kubelet.
func exclusiveCPUs(sockets string) func(context.Context, string) (cpuset.CPUSet, error) {
	return func(ctx context.Context, pod string) (cpuset.CPUSet, error) {
		result := brokerapi.CPUsResult{}
		err := server.Call(ctx, brokerapi.DevicePlugin, sockets, &brokerapi.Request{Verb: brokerapi.ExclusiveCPUs, Pod: pod},
			&result)
		cpus := make([]int, 0, len(result.CPUs))
		for _, cpu := range result.CPUs {
			cpus = append(cpus, int(cpu))
		}
		return cpuset.New(cpus...), err
	}
}
