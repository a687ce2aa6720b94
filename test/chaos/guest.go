// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// guestName is the name of the VM and of its VMI.
const guestName = "migrating"

// bandwidth limits the transfer of memory, so that it lasts long enough for a fault during it.
const bandwidth = "48Mi"

// diskSize is room for a day of records.
const diskSize = "4Gi"

// writerScript writes the guest's log: see oracle.Record. It finds the first free block by binary search, and repeats a
// write that failed. The uptime makes the records of two copies of the guest differ.
const writerScript = `#!/bin/sh
for d in /sys/block/vd*; do [ "$(cat $d/ro)" = 0 ] && disk=/dev/${d##*/}; done
at() { dd if=$disk bs=4096 skip=$1 count=1 2>/dev/null | tr -d '\0'; }
low=0 high=$(($(cat /sys/block/${disk##*/}/size) / 8))
while [ $((high - low)) -gt 1 ]; do
	middle=$(((low + high) / 2))
	if [ -n "$(at $middle)" ]; then low=$middle; else high=$middle; fi
done
n=$low hash=none
[ $n = 0 ] || { set -- $(at $n); hash=$5; }
boot=$(cat /proc/sys/kernel/random/boot_id)
echo "CHAOS-LOG from $((n + 1)) on $disk"
(while :; do
	read up rest </proc/uptime
	body="$((n + 1)) $boot $up $hash"
	set -- $(printf %s "$body" | sha256sum)
	if printf '%s %s\n' "$body" "$1" | dd of=$disk bs=4096 seek=$((n + 1)) conv=notrunc,sync,fsync 2>/dev/null; then
		n=$((n + 1)) hash=$1
	fi
	usleep 60000
done) &
`

func (h *harness) makeNamespace(ctx context.Context) error {
	return h.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: h.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
}

// claim is the PersistentVolumeClaim of the disk. Both nodes can access it, so that only memory is copied.
func (h *harness) claim() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: "log"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			VolumeMode:  ptr.To(corev1.PersistentVolumeFilesystem), StorageClassName: ptr.To("local-immediate"),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(diskSize)},
			},
		},
	}
}

// policy limits the bandwidth of the guest's migrations.
func (h *harness) policy() *migrationsv1alpha1.MigrationPolicy {
	return &migrationsv1alpha1.MigrationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: h.namespace},
		Spec: migrationsv1alpha1.MigrationPolicySpec{
			Selectors: &migrationsv1alpha1.Selectors{
				VirtualMachineInstanceSelector: map[string]string{"chaos": h.namespace}},
			BandwidthPerMigration: ptr.To(resource.MustParse(bandwidth)),
			// Compression would shorten the transfer.
			ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: ptr.To(v1.MigrationCompressionNone)},
		},
	}
}

// guest is the VM. It boots from a kernel, so that the log is the only disk it writes to.
func (h *harness) guest() *v1.VirtualMachine {
	disk := func(name string, readOnly bool) v1.Disk {
		return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio, ReadOnly: readOnly}}}
	}
	return &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.namespace, Name: guestName},
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyAlways),
			Template: &v1.VirtualMachineInstanceTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"chaos": h.namespace}},
				Spec: v1.VirtualMachineInstanceSpec{
					TerminationGracePeriodSeconds: ptr.To(int64(1)),
					Domain: v1.DomainSpec{
						Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))},
						Firmware: &v1.Firmware{KernelBoot: &v1.KernelBoot{
							KernelArgs: "console=ttyS0 loglevel=4 panic=1 mitigations=off",
							Container: &v1.KernelBootContainer{
								Image: h.image, ImagePullPolicy: corev1.PullIfNotPresent, KernelPath: "/boot/vmlinuz",
								InitrdPath: "/boot/initrd.img",
							},
						}},
						Devices: v1.Devices{
							Disks: []v1.Disk{disk("log", false), disk("cloudinit", true)},
							Interfaces: []v1.Interface{{
								Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
							}},
						},
					},
					Networks: []v1.Network{{Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}},
					Volumes: []v1.Volume{
						{Name: "log", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
							PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "log"},
						}}},
						{Name: "cloudinit", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: writerScript}}},
					},
				},
			},
		},
	}
}

// findDisk returns the path of the guest's disk on this host. It fails until the volume is provisioned.
func (h *harness) findDisk(ctx context.Context) (string, error) {
	claim, volume := h.claim(), &corev1.PersistentVolume{}
	if err := h.api.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
		return "", err
	}
	if err := h.api.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, volume); err != nil {
		return "", err
	}
	if volume.Spec.Local == nil {
		return "", fmt.Errorf("volume %s is not a local volume: chaos needs the storage class of the local cluster",
			volume.Name)
	}
	path := filepath.Join(volume.Spec.Local.Path, "disk.img")
	_, err := os.Stat(path)
	return path, err
}

// setUp creates the namespace and the guest, and returns when the guest writes its log.
func (h *harness) setUp(ctx context.Context) error {
	if err := h.makeNamespace(ctx); err != nil {
		return fmt.Errorf("create namespace %s: %w", h.namespace, err)
	}
	for _, object := range []client.Object{h.claim(), h.policy(), h.guest()} {
		if err := h.api.Create(ctx, object); err != nil {
			return fmt.Errorf("create the guest: %w", err)
		}
	}
	h.observer.forget()
	until := time.Now().Add(4 * time.Minute)
	for {
		err := h.isUp(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("the guest has not started: %w", err)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// isUp fails until the guest runs and writes its log.
func (h *harness) isUp(ctx context.Context) error {
	instance := h.observer.instance()
	if instance == nil || instance.Status.Phase != v1.Running {
		return errors.New("the VMI is not running")
	}
	if h.disk == "" {
		path, err := h.findDisk(ctx)
		if err != nil {
			return err
		}
		if err := h.trace.Watch(path); err != nil {
			return err
		}
		h.disk = path
	}
	if err := h.readLog(); err != nil {
		return err
	}
	if h.chain.Length() < 2 {
		return errors.New("the guest does not write its log")
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
