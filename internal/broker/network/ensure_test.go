// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	v1 "github.com/vireo-project/vireo/api/v1"
	plans "github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

func masqueradePlan(t *testing.T, ports ...v1.Port) Plan {
	t.Helper()
	return planFor(t, func(vmi *v1.VirtualMachineInstance) {
		i := masqueraded()
		i.Ports = ports
		addInterface(vmi, i, podNetwork())
	})
}

func bridgePlan(t *testing.T) Plan {
	t.Helper()
	return planFor(t, func(vmi *v1.VirtualMachineInstance) { addInterface(vmi, bridged("default"), podNetwork()) })
}

func planFor(t *testing.T, change func(*v1.VirtualMachineInstance)) Plan {
	t.Helper()
	plan, err := plans.NewPlan(vmiWith(change))
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func ensure(t *testing.T, w world, plan Plan) map[string]plans.Connected {
	t.Helper()
	results, err := Ensure(context.Background(), w.pod, plan)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// expectStable checks that another Ensure changes nothing and returns the same results.
func expectStable(t *testing.T, w world, plan Plan, first map[string]plans.Connected) {
	t.Helper()
	before := dump(t, w.pod)
	second := ensure(t, w, plan)
	if diff := cmp.Diff(before, dump(t, w.pod)); diff != "" {
		t.Errorf("a second Ensure changed something:\n%s", diff)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("a second Ensure returned other results:\n%s", diff)
	}
}

// expectReach connects from one namespace to a listener in another and checks the client's address.
func expectReach(t *testing.T, from *Namespace, target string, to *Namespace, listen, clientIP string) {
	t.Helper()
	route{from: from, to: to}.expect(t, target, listen, clientIP)
}

// route is the way from one namespace to another, with a dialer.
type route struct {
	by       net.Dialer
	from, to *Namespace
}

// expect is expectReach for the route.
func (r route) expect(t *testing.T, target, listen, clientIP string) {
	t.Helper()
	var listener net.Listener
	inside(t, r.to, func() (err error) {
		listener, err = net.Listen("tcp", listen)
		return err
	})
	defer func() { _ = listener.Close() }()
	client := make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			client <- err.Error()
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "hello")
		client <- conn.RemoteAddr().(*net.TCPAddr).IP.String()
	}()
	inside(t, r.from, func() error {
		r.by.Timeout = 5 * time.Second
		conn, err := r.by.Dial("tcp", target)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		content, err := io.ReadAll(conn)
		if err == nil && string(content) != "hello" {
			err = fmt.Errorf("read %q", content)
		}
		return err
	})
	if got := <-client; got != clientIP {
		t.Errorf("the client's address is %s, want %s", got, clientIP)
	}
}

func expectNoReach(t *testing.T, from *Namespace, target string) {
	t.Helper()
	inside(t, from, func() error {
		conn, err := net.DialTimeout("tcp", target, time.Second)
		if err == nil {
			_ = conn.Close()
			return errors.New("connected to " + target)
		}
		return nil
	})
}

func TestBridge(t *testing.T) {
	w := newWorld(t)
	plan := bridgePlan(t)
	results := ensure(t, w, plan)
	want := map[string]plans.Connected{"default": {
		Tap: "tap0", MAC: podMAC.String(), MTU: podMTU,
	}}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
	w.connectGuest(t, podMAC)
	expectStable(t, w, plan, results)
	address(t, w.guest, "nic0", "10.1.0.5/24")
	expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.1.0.5:8080", "10.1.0.1")
	expectReach(t, w.guest, "10.1.0.1:8081", w.peer, "10.1.0.1:8081", "10.1.0.5")
	inside(t, w.pod, func() error {
		nic, err := mustFind("eth0-nic")
		if err != nil {
			return err
		}
		if nic.Attrs().HardwareAddr.String() == podMAC.String() {
			return errors.New("the displaced interface still has the guest's hardware address")
		}
		remaining, err := addresses(nic)
		if err == nil && len(remaining) > 0 {
			err = fmt.Errorf("the displaced interface still has %v", remaining)
		}
		return err
	})
}

// Each case is a state that a broker may leave when it is killed.
func TestEnsureCompletesPartialStates(t *testing.T) {
	link := func(name string, do func(netlink.Link) error) func() error {
		return func() error {
			found, err := mustFind(name)
			if err != nil {
				return err
			}
			return do(found)
		}
	}
	// first makes the steps before one, and more.
	first := func(plan func(*testing.T) Plan, until networkapi.Change, more int) func(*testing.T, world) {
		return func(t *testing.T, w world) {
			links, err := Links(w.pod)
			if err != nil {
				t.Fatal(err)
			}
			steps, _, err := plans.Connect(plan(t), links)
			if err != nil {
				t.Fatal(err)
			}
			for i, step := range steps {
				if step.Do == until {
					steps = steps[:i+more]
					break
				}
			}
			if err := Change(t.Context(), w.pod, steps); err != nil {
				t.Fatal(err)
			}
		}
	}
	masquerade := func(t *testing.T) Plan { return masqueradePlan(t) }
	cases := map[string]struct {
		plan   func(*testing.T) Plan
		before func(*testing.T, world)
		// after undoes something after an Ensure.
		after []func() error
	}{
		"placeholder without addresses": {bridgePlan, first(bridgePlan, networkapi.AddBridge, 1), nil},
		"placeholder":                   {bridgePlan, first(bridgePlan, networkapi.AddAddress, 1), nil},
		"displaced":                     {bridgePlan, first(bridgePlan, networkapi.Rename, 1), nil},
		"replaced":                      {bridgePlan, first(bridgePlan, networkapi.SetUp, 1), nil},
		"another hardware address":      {bridgePlan, first(bridgePlan, networkapi.SetMAC, 1), nil},
		"a tap":                         {bridgePlan, first(bridgePlan, networkapi.AddTap, 1), nil},
		"no tap":                        {bridgePlan, nil, []func() error{link("tap0", netlink.LinkDel)}},
		"detached tap":                  {bridgePlan, nil, []func() error{link("tap0", netlink.LinkSetNoMaster), link("tap0", netlink.LinkSetDown)}},
		"no bridge":                     {bridgePlan, nil, []func() error{link("k6t-eth0", netlink.LinkDel)}},
		"detached nic":                  {bridgePlan, nil, []func() error{link("eth0-nic", netlink.LinkSetNoMaster)}},
		"nothing":                       {masquerade, nil, nil},
		"plain bridge":                  {masquerade, first(masquerade, networkapi.AddBridge, 1), nil},
		"rules":                         {masquerade, first(masquerade, networkapi.Translate, 1), nil},
		"no rules":                      {masquerade, nil, []func() error{deleteRules}},
		"bridge down":                   {masquerade, nil, []func() error{link("k6t-eth0", netlink.LinkSetDown)}},
		"tap missing":                   {masquerade, nil, []func() error{link("tap0", netlink.LinkDel)}},
		"down":                          {bridgePlan, first(bridgePlan, networkapi.Rename, 0), []func() error{link("eth0", netlink.LinkSetDown)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			plan := c.plan(t)
			if c.before != nil {
				c.before(t, w)
			} else if c.after != nil {
				ensure(t, w, plan)
			}
			for _, step := range c.after {
				inside(t, w.pod, step)
			}
			results := ensure(t, w, plan)
			expectComplete(t, w, plan, results)
			expectStable(t, w, plan, results)
		})
	}
}

// expectComplete checks the guest's connection.
func expectComplete(t *testing.T, w world, plan Plan, results map[string]plans.Connected) {
	t.Helper()
	if plan.Interfaces[0].Binding == plans.Bridge {
		if got := results["default"]; got.MAC != podMAC.String() {
			t.Errorf("the result is %+v", got)
		}
		w.connectGuest(t, podMAC)
		address(t, w.guest, "nic0", "10.1.0.5/24")
		expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.1.0.5:8080", "10.1.0.1")
	} else {
		w.connectGuest(t, plan.Interfaces[0].MAC)
		address(t, w.guest, "nic0", "10.0.2.2/24")
		defaultRoute(t, w.guest, "10.0.2.1")
		expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.0.2.2:8080", "10.1.0.1")
	}
	inside(t, w.pod, func() error {
		tap, err := mustFind("tap0")
		if err != nil {
			return err
		}
		bridge, err := mustFind("k6t-eth0")
		if err != nil {
			return err
		}
		a := tap.Attrs()
		if a.MasterIndex != bridge.Attrs().Index || a.MTU != podMTU || a.Flags&net.FlagUp == 0 {
			return fmt.Errorf("the tap is not set up: %+v", a)
		}
		return nil
	})
}

// The node's namespace is that of its first process. The broker's Pod may have another one.
func TestNodesNamespaceIsRejected(t *testing.T) {
	path := func(n *Namespace) string { return fmt.Sprintf("/proc/self/fd/%d", n.file.Fd()) }
	process := func(n *Namespace) string {
		dir := t.TempDir()
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "ns"), 0o700),
			os.Symlink(path(n), filepath.Join(dir, "ns", "net"))); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	nodes, agents, pods := newNamespace(t), newNamespace(t), newNamespace(t)
	known := nodeProcesses
	defer func() { nodeProcesses = known }()
	nodeProcesses = append([]string{process(nodes), process(agents)}, known...)
	for what, n := range map[string]*Namespace{"the node's": nodes, "the broker's": agents} {
		if _, err := OpenNamespaceFile(path(n)); !errors.Is(err, ErrNodesNamespace) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	opened, err := OpenNamespaceFile(path(pods))
	if err != nil {
		t.Fatal(err)
	}
	_ = opened.Close()
	if _, err := OpenNamespaceFile("/proc/self/ns/net"); !errors.Is(err, ErrNodesNamespace) {
		t.Errorf("the broker's own: got %v", err)
	}
	nodeProcesses = []string{t.TempDir()}
	if _, err := OpenNamespaceFile(path(pods)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with a process that cannot be read: %v", err)
	}
}

// A security module may deny access to the namespaces of the node's processes.
func TestCompareNamespacesByInterfaceTable(t *testing.T) {
	pods := newNamespace(t)
	file, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	agents := &Namespace{file: file}
	defer func() { _ = agents.Close() }()
	for _, c := range []struct {
		namespace *Namespace
		want      bool
	}{{agents, true}, {pods, false}} {
		byTable, err := c.namespace.hasTableOf("/proc/self")
		if err != nil || byTable != c.want {
			t.Errorf("by the table: %t, %v", byTable, err)
		}
		if is, err := c.namespace.isOf("/proc/self"); err != nil || is != c.want {
			t.Errorf("by the namespace: %t, %v", is, err)
		}
	}
	if _, err := pods.hasTableOf(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a process that does not exist: %v", err)
	}
}

func TestTapBelongsToQEMU(t *testing.T) {
	for name, many := range map[string]bool{"one queue": false, "many queues": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			plan := planFor(t, func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue = &many
				vmi.Spec.Domain.CPU = &v1.CPU{Cores: 4}
				i := masqueraded()
				i.Model = v1.VirtIO
				addInterface(vmi, i, podNetwork())
			})
			ensure(t, w, plan)
			inside(t, w.pod, func() error {
				link, err := mustFind("tap0")
				if err != nil {
					return err
				}
				tap, ok := link.(*netlink.Tuntap)
				if !ok || tap.Owner != layout.QEMUUser || tap.Group != layout.QEMUUser || tap.NonPersist {
					return fmt.Errorf("the tap is %+v", link)
				}
				if got := tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0; got != many {
					return fmt.Errorf("the tap's flags are %#x", uint16(tap.Flags))
				}
				return nil
			})
		})
	}
}
