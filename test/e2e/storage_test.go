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

// storageClass has the volumes that the claims of these tests bind to.
var storageClass = valueOr("STORAGE_CLASS", "local")

// The small guest counts its boots on each disk with a serial, and tells the number.
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
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")},
			},
		},
	}
}

var _ = Describe("A disk on a claim", func() {
	DescribeTable("keeps its data over stop and start", func(ctx context.Context, mode corev1.PersistentVolumeMode) {
		namespace := newNamespace(ctx)
		create(ctx, makeClaim(namespace, "data", mode),
			makeVM(namespace, "keeper", withClaim("data", "data")))
		instance := expectReady(ctx, namespace, "keeper")
		expectConsole(ctx, namespace, "keeper", bootTimeout, MatchRegexp(bootsOn("data", 1)))
		Expect(instance.Status.VolumeStatus).To(ContainElement(And(
			HaveField("Name", "data"), HaveField("PersistentVolumeClaimInfo.ClaimName", "data"))))
		setRunStrategy(ctx, namespace, "keeper", v1.RunStrategyHalted)
		expectGone(ctx, instance)
		setRunStrategy(ctx, namespace, "keeper", v1.RunStrategyAlways)
		expectReady(ctx, namespace, "keeper")
		expectConsole(ctx, namespace, "keeper", bootTimeout, MatchRegexp(bootsOn("data", 2)))
	},
		Entry("with a file system", SpecTimeout(10*time.Minute), corev1.PersistentVolumeFilesystem),
		Entry("with a block device", SpecTimeout(10*time.Minute), corev1.PersistentVolumeBlock),
	)

	It("gives an empty disk of the asked size", func(ctx context.Context) {
		namespace := newNamespace(ctx)
		create(ctx, makeVM(namespace, "empty",
			withDisk("scratch", v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("96Mi")}}),
			withUserData("#!/bin/sh\nfor d in /sys/block/vd*; do echo SIZE-$(cat $d/size) >/dev/console; done\n")))
		expectReady(ctx, namespace, "empty")
		expectConsole(ctx, namespace, "empty", bootTimeout, ContainSubstring("SIZE-196608"))
	}, SpecTimeout(8*time.Minute))
})
