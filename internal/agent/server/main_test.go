// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// podAddress is the launcher Pod's address. The network namespace of the tests has it.
const podAddress = "10.244.0.5"

// TestMain runs the tests in a network namespace of their own, in which the Pod's address can be dialed.
func TestMain(m *testing.M) {
	const inside = "VIREO_TEST_INSIDE"
	if slices.Contains(os.Args, "-test.fuzzworker") {
		os.Exit(m.Run()) // A fuzz worker is inside already and uses no network.
	}
	if os.Getenv(inside) != "" {
		if err := addPodAddress(); err != nil {
			fmt.Fprintln(os.Stderr, "cannot set up the network namespace of the tests:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.Env = append(os.Environ(), inside+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		self := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		again.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		again.SysProcAttr.UidMappings = self
	}
	err := again.Run()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		fmt.Fprintln(os.Stderr, "cannot run the tests in a network namespace:", err)
		os.Exit(1)
	}
	os.Exit(again.ProcessState.ExitCode())
}

func addPodAddress() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	return netlink.AddrAdd(loopback,
		&netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(podAddress), Mask: net.CIDRMask(32, 32)}})
}

// echoServer starts a TCP echo server and returns its port. It accepts no connections after stop.
func echoServer(t *testing.T) (port string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(podAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				echo(conn)
				_ = conn.Close()
			}()
		}
	}()
	return portOf(t, listener.Addr()), func() { _ = listener.Close() }
}

func portOf(t *testing.T, address net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
