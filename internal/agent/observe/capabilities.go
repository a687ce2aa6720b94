// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package observe reports on the node to virt-controller: a Lease is the agent's heartbeat, and a ConfigMap contains
// the node's capabilities. The agent does not write the Node.
package observe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// Limits for the files and the report.
const (
	maxCapabilitiesFile = 4 << 20
	maxEntries          = 1024
)

// name matches what can be part of a label's key: virt-controller makes a label of each entry.
var name = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,60}[A-Za-z0-9])?$`)

// ReadCapabilities returns the report of what libvirt of the launcher image supports on the node, without Devices and
// KVM.
func ReadCapabilities(dir, arch string) (*agentapi.Capabilities, error) {
	var domainCaps libvirtxml.DomainCaps
	if err := readXML(filepath.Join(dir, launcherpod.DomainCapabilities), domainCaps.Unmarshal); err != nil {
		return nil, err
	}
	var host libvirtxml.Caps
	if err := readXML(filepath.Join(dir, launcherpod.HostCapabilities), host.Unmarshal); err != nil {
		return nil, err
	}
	report := &agentapi.Capabilities{Arch: arch}
	addCPU(report, &domainCaps)
	if err := addFeatures(report, filepath.Join(dir, launcherpod.SupportedFeatures)); err != nil {
		return nil, err
	}
	addHyperv(report, &domainCaps)
	addHost(report, &host)
	for _, list := range []*[]string{
		&report.MachineTypes, &report.HostModelFeatures, &report.CPUModels, &report.KnownCPUModels, &report.CPUFeatures,
		&report.HypervFeatures,
	} {
		*list = normalize(*list)
	}
	return report, nil
}

// DeprecatedMachineTypes returns the machine types that QEMU on this node calls deprecated.
func DeprecatedMachineTypes(dir string) ([]string, error) {
	var host libvirtxml.Caps
	if err := readXML(filepath.Join(dir, launcherpod.HostCapabilities), host.Unmarshal); err != nil {
		return nil, err
	}
	var deprecated []string
	for _, guest := range host.Guests {
		machines := guest.Arch.Machines
		for _, domain := range guest.Arch.Domains {
			machines = append(machines, domain.Machines...)
		}
		for _, machine := range machines {
			if machine.Deprecated == "yes" {
				deprecated = append(deprecated, machine.Name)
			}
		}
	}
	return normalize(deprecated), nil
}

func readXML(path string, unmarshal func(string) error) error {
	f, err := os.Open(path) //nolint:gosec // the directory is a flag, the names are constants
	if err != nil {
		return fmt.Errorf("read the node's capabilities: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxCapabilitiesFile))
	if err != nil {
		return fmt.Errorf("read the node's capabilities: %w", err)
	}
	if err := unmarshal(string(data)); err != nil {
		return fmt.Errorf("read the node's capabilities from %s: %w", path, err)
	}
	return nil
}

// addCPU adds the CPU models that are usable on the node, and the one of host-model.
func addCPU(report *agentapi.Capabilities, caps *libvirtxml.DomainCaps) {
	if caps.CPU == nil {
		return
	}
	for _, mode := range caps.CPU.Modes {
		switch mode.Name {
		case "host-model":
			report.Vendor = validName(mode.Vendor)
			if len(mode.Models) > 0 {
				report.HostModel = validName(mode.Models[0].Name)
			}
			for _, f := range mode.Features {
				if f.Policy == "require" {
					report.HostModelFeatures = append(report.HostModelFeatures, f.Name)
				}
			}
		case "custom":
			for _, m := range mode.Models {
				report.KnownCPUModels = append(report.KnownCPUModels, m.Name)
				if m.Usable == "yes" {
					report.CPUModels = append(report.CPUModels, m.Name)
				}
			}
		}
	}
}

// addFeatures adds the features that a guest can require: those of host-model, with those of its model.
func addFeatures(report *agentapi.Capabilities, path string) error {
	var cpu libvirtxml.DomainCPU
	err := readXML(path, cpu.Unmarshal)
	if errors.Is(err, os.ErrNotExist) { // of a launcher of an earlier release
		report.CPUFeatures = slices.Clone(report.HostModelFeatures)
		return nil
	}
	for _, f := range cpu.Features {
		if f.Policy == "require" {
			report.CPUFeatures = append(report.CPUFeatures, f.Name)
		}
	}
	return err
}

// hypervLabels are the names that the labels of nodes have for libvirt's Hyper-V enlightenments. Others have no label.
// Source: kubevirt/kubevirt pkg/virt-handler/node-labeller, the capabilities of KVM.
var hypervLabels = map[string][]string{
	"vpindex": {"vpindex"}, "runtime": {"runtime"}, "reset": {"reset"}, "synic": {"synic", "synic2"},
	"stimer": {"synictimer"}, "frequencies": {"frequencies"}, "reenlightenment": {"reenlightenment"},
	"tlbflush": {"tlbflush"}, "ipi": {"ipi"},
}

func addHyperv(report *agentapi.Capabilities, caps *libvirtxml.DomainCaps) {
	if caps.Features == nil || caps.Features.HyperV == nil || caps.Features.HyperV.Supported != "yes" {
		return
	}
	report.HypervFeatures = append(report.HypervFeatures, "base", "time") // which every KVM has with the others
	for _, e := range caps.Features.HyperV.Enums {
		if e.Name != "features" {
			continue
		}
		for _, value := range e.Values {
			report.HypervFeatures = append(report.HypervFeatures, hypervLabels[value]...)
		}
	}
}

// addHost adds the machine types of the node's architecture.
func addHost(report *agentapi.Capabilities, caps *libvirtxml.Caps) {
	for _, guest := range caps.Guests {
		if caps.Host.CPU != nil && guest.Arch.Name != caps.Host.CPU.Arch {
			continue
		}
		for _, machine := range guest.Arch.Machines {
			report.MachineTypes = append(report.MachineTypes, machine.Name)
		}
	}
}

func validName(s string) string {
	if !name.MatchString(s) {
		return ""
	}
	return s
}

// normalize returns the valid names, sorted and without duplicates, so that equal nodes have equal reports.
func normalize(list []string) []string {
	list = slices.DeleteFunc(list, func(s string) bool { return !name.MatchString(s) })
	slices.Sort(list)
	list = slices.Compact(list)
	return list[:min(len(list), maxEntries)]
}

// rtRuntime is the part of each period in which realtime threads may run; -1 means all of it.
// Source: Linux Documentation/scheduler/sched-rt-group.rst.
const rtRuntime = "/proc/sys/kernel/sched_rt_runtime_us"

// RealtimeCapable reports whether the node's kernel does not limit the run time of realtime threads, KubeVirt's
// condition for realtime guests. It returns false for a kernel without the setting.
func RealtimeCapable() (bool, error) { return realtimeCapable(rtRuntime) }

func realtimeCapable(path string) (bool, error) {
	text, err := os.ReadFile(path) //nolint:gosec // a constant but for the test
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the limit for realtime threads: %w", err)
	}
	return strings.TrimSpace(string(text)) == "-1", nil
}

// ReadTopology reads which of the node's CPUs share a core and which share memory, as libvirt of the launcher image
// reported it.
func ReadTopology(dir string) ([]domain.NUMACellFact, error) {
	var host libvirtxml.Caps
	if err := readXML(filepath.Join(dir, launcherpod.HostCapabilities), host.Unmarshal); err != nil {
		return nil, err
	}
	if host.Host.NUMA == nil || host.Host.NUMA.Cells == nil {
		return nil, nil
	}
	var cells []domain.NUMACellFact
	for _, c := range host.Host.NUMA.Cells.Cells {
		cell := domain.NUMACellFact{ID: uint(c.ID)}
		if c.CPUS == nil {
			continue // A cell without CPUs has only memory.
		}
		for _, cpu := range c.CPUS.CPUs {
			cell.CPUs = append(cell.CPUs, domain.CPUFact{ID: uint(cpu.ID), Siblings: siblings(cpu)})
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

// maxCPU is the highest ID of a CPU of which siblings are read: Linux has at most 8192 CPUs.
const maxCPU = 8191

// siblings returns the CPUs on the core of a CPU, itself included. libvirt leaves the list out for a CPU that is
// offline.
func siblings(cpu libvirtxml.CapsHostNUMACPU) []uint {
	alone := []uint{uint(cpu.ID)}
	// Parse makes an entry for each CPU of a range.
	for number := range strings.FieldsFuncSeq(cpu.Siblings, func(r rune) bool { return r == ',' || r == '-' }) {
		if id, err := strconv.Atoi(number); err != nil || id > maxCPU {
			return alone
		}
	}
	set, err := cpuset.Parse(cpu.Siblings)
	if err != nil || !set.Contains(cpu.ID) {
		return alone
	}
	ids := make([]uint, 0, set.Size())
	for _, id := range set.List() {
		ids = append(ids, uint(id))
	}
	return ids
}
