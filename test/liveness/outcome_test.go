// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/media"
	"github.com/vireo-project/vireo/internal/agent/network"
	agentvmi "github.com/vireo-project/vireo/internal/agent/vmi"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	webhookv1 "github.com/vireo-project/vireo/internal/webhook/v1"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

// clusterOf returns the configuration of a cluster with the feature gates that the leaves need.
func clusterOf() clusterconfig.Config {
	config := clusterconfig.Default()
	config.FeatureGates = clusterconfig.NewFeatureGates([]string{
		"HostDisk", "MultiArchitecture", "VSOCK", "NUMA", "CPUManager", "HypervStrictCheck", "ExpandDisks",
		"ReservedOverheadMemlock", "RebootPolicy", "PanicDevices", "DownwardMetrics", "VMPersistentState", "PortRangesSpec",
	}, nil)
	return config
}

// outcomeOf builds all that Vireo builds from a VMI: the Pod, the network plan, the media, the domain, and what the
// agent changes in the running guest. Two VMIs have the same result if and only if all of these are the same.
func outcomeOf(vmi *v1.VirtualMachineInstance) (string, error) {
	vmi = vmi.DeepCopy()
	if faults := webhookv1.Admit(vmi, clusterOf()); len(faults) > 0 {
		return "", fmt.Errorf("admission: %w", faults.ToAggregate())
	}
	// Before the claims are described: then it is settled which volumes are hotplugged.
	pod, err := podspec.Build(vmi,
		podspec.Config{LauncherImage: "launcher", CPUAllocationRatio: 10, StateClaim: "state", HotplugVolumes: true})
	if err != nil {
		return "", fmt.Errorf("launcher Pod: %w", err)
	}
	describeClaims(vmi)
	plan, err := network.NewPlan(vmi)
	if err != nil {
		return "", fmt.Errorf("network: %w", err)
	}
	launcher := libvirt.NewNode().Launcher("pod")
	disks, err := media.Prepare(context.Background(), launcherWith(launcher, vmi), kubelet{}, media.Limits{}, vmi)
	if err != nil {
		return "", fmt.Errorf("media: %w", err)
	}
	definition, err := domain.Build(vmi, factsOf(disks, plan))
	if err != nil {
		return "", fmt.Errorf("domain: %w", err)
	}
	xml, err := definition.Marshal()
	if err != nil {
		return "", err
	}
	if media.HasTaggedDevices(vmi) {
		defined, err := launcher.Define(context.Background(), definition)
		if err != nil {
			return "", err
		}
		if err := media.WriteDeviceMetadata(context.Background(), launcher, kubelet{}, vmi, defined, disks); err != nil {
			return "", fmt.Errorf("tags: %w", err)
		}
	}
	contents := map[string][]byte{}
	for name := range disks.Disks {
		contents[name] = launcher.Content(name + ".iso")
	}
	running, err := runningOf(vmi)
	if err != nil {
		return "", err
	}
	parts, err := json.Marshal(
		map[string]any{"pod": pod, "network": plan, "disks": disks, "contents": contents, "running": running})
	return string(parts) + xml, err
}

// runningOf returns what the agent sets in a running guest.
func runningOf(vmi *v1.VirtualMachineInstance) (any, error) {
	realtime, err := domain.RealtimeVCPUs(vmi)
	if err != nil {
		return nil, fmt.Errorf("realtime: %w", err)
	}
	credentials, err := agentvmi.ReadCredentials(vmi.Spec.AccessCredentials, kubelet{})
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return map[string]any{"realtime": realtime, "credentials": credentials}, nil
}

// blockClaim is the claim with volumeMode Block.
const blockClaim = "block"

// describeClaims sets the descriptions of claims that virt-controller writes to the status of a VMI.
func describeClaims(vmi *v1.VirtualMachineInstance) {
	vmi.Status.VSOCKCID = ptr.To[uint32](7)
	for i := range vmi.Spec.Volumes {
		claim := podspec.ClaimName(&vmi.Spec.Volumes[i])
		if claim == "" {
			continue
		}
		mode := corev1.PersistentVolumeFilesystem
		if claim == blockClaim {
			mode = corev1.PersistentVolumeBlock
		}
		vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, v1.VolumeStatus{
			Name:                      vmi.Spec.Volumes[i].Name,
			PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: claim, VolumeMode: &mode},
		})
	}
}

// launcherWith adds the contents of images and claims to the storage of a launcher.
func launcherWith(l *libvirt.Launcher, vmi *v1.VirtualMachineInstance) *libvirt.Launcher {
	for i := range vmi.Spec.Volumes {
		name := vmi.Spec.Volumes[i].Name
		image := hypervisor.Volume{Name: "disk.img", Format: hypervisor.FormatRaw, Capacity: 1 << 30}
		l.AddFile(launcherpod.DiskDir(name), image)
		for _, file := range []string{"disk.img", "other.img"} {
			image.Name = file
			l.AddFile(path.Join(launcherpod.ContainerDiskDir(name), "disk"), image)
			image.Format = hypervisor.FormatQCOW2
		}
	}
	return l
}

// factsOf returns the facts of a node with all devices and features.
func factsOf(disks *media.Result, plan network.Plan) domain.Facts {
	facts := domain.Facts{
		Arch: "amd64", Disks: disks.Disks, KernelBoot: disks.KernelBoot, ACPI: disks.ACPI, MemBalloonStatsPeriod: 10,
		VhostNet: true, Interfaces: map[string]domain.InterfaceFact{}, NUMACells: []domain.NUMACellFact{{}},
	}
	for id := range uint(8) {
		facts.CPUs = append(facts.CPUs, id)
		facts.NUMACells[0].CPUs = append(facts.NUMACells[0].CPUs, domain.CPUFact{ID: id})
	}
	for name, disk := range facts.Disks {
		disk.DirectIO, disk.LogicalBlockSize, disk.PhysicalBlockSize = true, 4096, 4096
		facts.Disks[name] = disk
	}
	for i := range plan.Interfaces {
		planned := &plan.Interfaces[i]
		mac := planned.MAC.String()
		if mac == "" {
			mac = "02:00:00:00:00:01"
		}
		facts.Interfaces[planned.Name] = domain.InterfaceFact{Tap: fmt.Sprintf("tap%d", i), MAC: mac, MTU: 1450}
	}
	return facts
}

// kubelet has all files that a Pod can mount.
type kubelet struct{}

func (kubelet) Secret(volume string, keys ...string) ([]byte, error) {
	// Long enough for an ACPI table.
	return fmt.Appendf(nil, "%-36s", volume+"/"+strings.Join(keys, ",")), nil
}

func (kubelet) Files(kind media.VolumeKind, volume string) (map[string][]byte, error) {
	// sysprep needs a file of this name.
	return map[string][]byte{"unattend.xml": []byte(string(kind) + "/" + volume)}, nil
}

// specOf returns a VMI with the merged fragments of a spec. A later fragment replaces values that are not maps.
func specOf(fragments ...string) (*v1.VirtualMachineInstance, error) {
	merged := map[string]any{}
	for _, fragment := range fragments {
		tree := map[string]any{}
		if err := yaml.Unmarshal([]byte(fragment), &tree); err != nil {
			return nil, fmt.Errorf("%w in %s", err, fragment)
		}
		merge(merged, tree)
	}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "default", "vm", "1f6f0a52-7e6d-4c7c-9a1b-5b0f9d0c1e11"
	whole, err := json.Marshal(merged)
	if err != nil {
		return nil, err
	}
	return vmi, yaml.UnmarshalStrict(whole, &vmi.Spec)
}

func merge(into, from map[string]any) {
	for key, value := range from {
		below, isMap := value.(map[string]any)
		known, wasMap := into[key].(map[string]any)
		if isMap && wasMap {
			merge(known, below)
			continue
		}
		into[key] = value
	}
}
