// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// storageClass is the storage class of the claims in this suite.
var storageClass = valueOr("STORAGE_CLASS", "local")

// bootsOn returns the pattern of the line with which the small guest reports its n-th boot on a disk with a serial.
func bootsOn(serial string, n int) string {
	return fmt.Sprintf("VIREO-GUEST-DISK %s .*boots=%d ", serial, n)
}

func makeClaim(namespace, name string, mode corev1.PersistentVolumeMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: ptr.To(mode),
			StorageClassName: ptr.To(storageClass),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("128Mi")},
			},
		},
	}
}

// The specs use one guest with a disk of each kind, because booting takes most of the time.
var _ = Describe("A disk", kvmLinux(), func() {
	It("keeps its data across a restart on claims of both volume modes, and an emptyDisk has its capacity and is empty again", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeClaim(namespace, "files", corev1.PersistentVolumeFilesystem),
			makeClaim(namespace, "block", corev1.PersistentVolumeBlock),
			makeVM(namespace, "keeper", withGracePeriod(60), withClaim("files", "files"), withClaim("block", "block"),
				withDisk("scratch", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("96Mi")}}),
				withUserData("#!/bin/sh\nfor d in /sys/block/vd*; do echo SIZE-$(cat $d/size) >/dev/console; done\n")))
		instance := expectReady(ctx, namespace, "keeper")
		expectConsole(ctx, namespace, "keeper", bootTimeout, And(
			MatchRegexp(bootsOn("files", 1)), MatchRegexp(bootsOn("block", 1)), MatchRegexp(bootsOn("scratch", 1)),
			ContainSubstring("SIZE-196608")))
		for _, claim := range []string{"files", "block"} {
			Expect(instance.Status.VolumeStatus).To(ContainElement(And(
				HaveField("Name", claim), HaveField("PersistentVolumeClaimInfo.ClaimName", claim))))
		}
		setRunStrategy(ctx, namespace, "keeper", v1.RunStrategyHalted)
		expectGone(ctx, instance)
		setRunStrategy(ctx, namespace, "keeper", v1.RunStrategyAlways)
		expectReady(ctx, namespace, "keeper")
		expectConsole(ctx, namespace, "keeper", bootTimeout, And(
			MatchRegexp(bootsOn("files", 2)), MatchRegexp(bootsOn("block", 2)), MatchRegexp(bootsOn("scratch", 1))))
	}, specTimeout(10*time.Minute))
})
