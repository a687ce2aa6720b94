// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Program virtctl has KubeVirt's own commands, unchanged, with which tests use Vireo as a user who has installed
// KubeVirt's virtctl does. The commands for templates are left out, for they need an add-on.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"kubevirt.io/client-go/kubecli"
	"kubevirt.io/client-go/log"
	"kubevirt.io/kubevirt/pkg/virtctl/clientconfig"
	"kubevirt.io/kubevirt/pkg/virtctl/imageupload"
	"kubevirt.io/kubevirt/pkg/virtctl/memorydump"
	"kubevirt.io/kubevirt/pkg/virtctl/pause"
	"kubevirt.io/kubevirt/pkg/virtctl/unpause"
	"kubevirt.io/kubevirt/pkg/virtctl/vm"
	"kubevirt.io/kubevirt/pkg/virtctl/vmexport"
)

func main() {
	log.InitializeLogging("virtctl")
	// The commands' usage needs these.
	cobra.AddTemplateFunc("ProgramName", func() string { return "virtctl" })
	cobra.AddTemplateFunc("prepare", func(text string) string { return text })
	root := &cobra.Command{Use: "virtctl", SilenceUsage: true, SilenceErrors: true}
	root.SetOut(os.Stdout)
	root.SetContext(clientconfig.NewContext(context.Background(), kubecli.DefaultClientConfig(root.PersistentFlags())))
	root.AddCommand(
		vmexport.NewVirtualMachineExportCommand(), memorydump.NewMemoryDumpCommand(), imageupload.NewImageUploadCommand(),
		vm.NewStartCommand(), vm.NewStopCommand(), vm.NewRestartCommand(), vm.NewAddVolumeCommand(),
		vm.NewRemoveVolumeCommand(),
		vm.NewExpandCommand(), vm.NewFSListCommand(), vm.NewGuestOsInfoCommand(), vm.NewUserListCommand(), pause.NewCommand(),
		unpause.NewCommand(),
	)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
