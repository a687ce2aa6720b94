// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-tail is the container guest-console-log of a VM's Pod, which prints the guest's serial console. With
// --hold it is the container of an attachment Pod, which creates a disk image on an empty claim, and then waits until
// it is stopped: the smallest program of the image keeps the Pod's volumes on the node.
package main

import (
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/tail"
)

// waitArgument is launcherpod.HoldArgument. The package is not imported, because one virt-tail runs for every guest.
const waitArgument = "--hold"

func main() {
	debug.SetGCPercent(20)
	waits := len(os.Args) > 1 && os.Args[1] == waitArgument
	if len(os.Args) != 2 && !waits {
		_, _ = os.Stderr.WriteString("usage: virt-tail PIPE | --hold [IMAGE SIZE RESERVE PERCENT]\n")
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	if waits {
		if len(os.Args) > 2 {
			if err := tail.CreateImage(os.Args[2], os.Args[3:]); err != nil {
				// The agent reports that there is no image. A Pod that ended would be started again and again.
				_, _ = os.Stderr.WriteString("virt-tail: " + err.Error() + "\n")
			}
		}
		<-stop
		return
	}
	// A container runtime that restarts closes the log for a moment. Without a handler, a write would then terminate
	// PID 1.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	if err := tail.Run(os.Args[1], os.Stdout, stop, time.After(tail.StartTimeout)); err != nil {
		_, _ = os.Stderr.WriteString("virt-tail: " + err.Error() + "\n")
		os.Exit(1)
	}
}
