// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-freezer freezes and thaws the guest's file systems from inside its Pod. Backup tools run it because of
// annotations that virt-controller adds to launcher Pods. Its flags are KubeVirt's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vireo-project/vireo/internal/launcher/freezer"
	"github.com/vireo-project/vireo/internal/launcher/vmstate"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// timeout bounds the whole run. The annotations give a hook 60 seconds.
	timeout = 55 * time.Second
	// defaultUnfreeze is KubeVirt's.
	defaultUnfreeze = 300
)

// options are the options of the command line.
type options struct {
	freeze, unfreeze bool
	name, namespace  string
	unfreezeTimeout  int
}

func parse(arguments []string, out io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("virt-freezer", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.BoolVar(&o.freeze, "freeze", false, "freeze the guest's file systems")
	flags.BoolVar(&o.unfreeze, "unfreeze", false, "thaw the guest's file systems")
	flags.StringVar(&o.name, "name", "", "name of the VirtualMachineInstance")
	flags.StringVar(&o.namespace, "namespace", "", "namespace of the VirtualMachineInstance")
	flags.IntVar(&o.unfreezeTimeout, "unfreezeTimeoutSeconds", defaultUnfreeze,
		"seconds after which frozen file systems are thawed automatically; 0 means never")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	switch {
	case o.freeze == o.unfreeze:
		return o, errors.New("use either --freeze or --unfreeze")
	case o.name == "" || o.namespace == "":
		return o, errors.New("--name and --namespace of the VirtualMachineInstance are required")
	case o.unfreezeTimeout < 0:
		return o, errors.New("--unfreezeTimeoutSeconds is negative: it must be 0 or more")
	}
	return o, nil
}

func run(ctx context.Context, o options) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client, err := libvirtwire.Dial(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return fmt.Errorf("connect to libvirtd: %w", err)
	}
	defer client.Close()
	guest := freezer.Freezer{
		Hypervisor: client, Domain: launcherpod.DomainName(o.namespace, o.name),
		SyncState: func() error { return vmstate.Sync(launcherpod.StateDir) },
	}
	if o.unfreeze {
		return guest.Thaw(ctx)
	}
	until := time.Time{}
	if o.unfreezeTimeout > 0 {
		until = time.Now().Add(time.Duration(o.unfreezeTimeout) * time.Second)
	}
	return guest.Freeze(ctx, until)
}

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if err == nil {
		err = run(context.Background(), o)
	}
	switch {
	case err == nil:
	case errors.Is(err, freezer.ErrNoAgent), errors.Is(err, freezer.ErrPaused), errors.Is(err, freezer.ErrNothing):
		_, _ = fmt.Println("Nothing was done:", err) // The backup continues, as with KubeVirt.
	default:
		_, _ = fmt.Fprintln(os.Stderr, "virt-freezer:", err)
		os.Exit(1)
	}
}
