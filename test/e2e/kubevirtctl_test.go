// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
)

// kubevirtVirtctl is KubeVirt's own virtctl, which `hack/tools/build.sh kubevirt-virtctl` builds. Without it, nothing
// is tried with it.
var kubevirtVirtctl = os.Getenv("KUBEVIRT_VIRTCTL")

// runKubeVirtctl runs a command of KubeVirt's virtctl.
func runKubeVirtctl(ctx context.Context, args ...string) (output string, err error) {
	GinkgoHelper()
	limited, cancel := context.WithTimeout(ctx, bootTimeout+time.Minute)
	defer cancel()
	text, err := exec.CommandContext(limited, kubevirtVirtctl, args...).CombinedOutput()
	return string(text), err
}

func expectKubeVirtctl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	output, err := runKubeVirtctl(ctx, args...)
	Expect(err).NotTo(HaveOccurred(), "KubeVirt's virtctl %v: %s", args, output)
	return output
}

// expectKubeVirtExports exports a snapshot with KubeVirt's virtctl. sums are those of the disks "files" and "block".
func expectKubeVirtExports(ctx context.Context, namespace, snapshot, vm string, sums map[string]string) {
	GinkgoHelper()
	if kubevirtVirtctl == "" {
		return
	}
	By("downloading it with KubeVirt's virtctl")
	const name, patience = "theirs", "--readiness-timeout=4m"
	directory := GinkgoT().TempDir()
	raw, packed := filepath.Join(directory, "files.img"), filepath.Join(directory, "block.img.gz")
	download := []string{"vmexport", "download", "-n", namespace, name, "--port-forward", patience}
	expectKubeVirtctl(ctx, append(download, "--snapshot="+snapshot, "--volume="+name+"-files", "--format=raw",
		"--output="+raw, "--keep-vme")...)
	Expect(sumOfFile(raw)).To(Equal(sums["files"]))
	expectKubeVirtctl(ctx, append(download, "--volume="+name+"-block", "--output="+packed)...)
	Expect(sumOfGzip(packed)).To(Equal(sums["block"]))
	Expect(expectKubeVirtctl(ctx, append(download, "--manifest", "--include-secret")...)).To(And(
		ContainSubstring("kind: VirtualMachine\n"), ContainSubstring("name: "+vm+"\n"), ContainSubstring("kind: Secret\n")))
	image := filepath.Join(directory, "image.tar")
	expectKubeVirtctl(ctx, append(download, "--format=oci", "--output="+image)...)
	expectImage(image, vm, sums)
	expectKubeVirtctl(ctx, "vmexport", "delete", "-n", namespace, name)
	expectGone(ctx, &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})

	By("requesting what is not exported with it")
	template := &exportv1.VirtualMachineExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "template"}}
	expectKubeVirtctl(ctx, "vmexport", "create", "-n", namespace, template.Name, "--vmtemplate=golden")
	expectExport(ctx, template, exportv1.Pending)
	Expect(template.Status.Conditions).To(ContainElement(And(HaveField("Type", exportv1.ConditionReady),
		HaveField("Message", ContainSubstring("sources of the kind VirtualMachineTemplate are not exported")))))
	expectKubeVirtctl(ctx, "vmexport", "delete", "-n", namespace, template.Name)
	expectGone(ctx, template)
}
