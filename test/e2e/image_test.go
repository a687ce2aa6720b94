// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// imageBlob is what an OCI image says of one of its blobs.
type imageBlob struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

// ociImage is the layout of an OCI image: the files of its archive, and the blobs that were found by their descriptors.
type ociImage struct {
	files map[string][]byte
	found map[string]bool
}

// readImage reads the archive with an OCI image. No file may be in it twice.
func readImage(archive string) *ociImage {
	GinkgoHelper()
	file, err := os.Open(archive)
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }()
	image := &ociImage{files: map[string][]byte{}, found: map[string]bool{}}
	for entries := tar.NewReader(file); ; {
		entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return image
		}
		Expect(err).NotTo(HaveOccurred())
		Expect(image.files).NotTo(HaveKey(entry.Name))
		image.files[entry.Name], err = io.ReadAll(entries)
		Expect(err).NotTo(HaveOccurred())
	}
}

// blob returns the blob of a descriptor, whose size and digest are what the descriptor says.
func (i *ociImage) blob(of imageBlob, mediaType string) []byte {
	GinkgoHelper()
	Expect(of.MediaType).To(Equal(mediaType))
	algorithm, digest, _ := strings.Cut(of.Digest, ":")
	name := "blobs/" + algorithm + "/" + digest
	Expect(i.files).To(HaveKey(name))
	Expect(i.files[name]).To(HaveLen(int(of.Size)), name)
	Expect(algorithm + ":" + sum(bytes.NewReader(i.files[name]))).To(Equal("sha256:" + digest))
	i.found[name] = true
	return i.files[name]
}

func decodeJSON(text []byte, into any) {
	GinkgoHelper()
	Expect(json.Unmarshal(text, into)).To(Succeed(), string(text))
}

// expectImage reads an archive as an importer of OCI images does. It has the VM and its disks, whose checksums are
// known, and nothing else.
func expectImage(archive, name string, sums map[string]string) {
	GinkgoHelper()
	image := readImage(archive)
	Expect(image.files["oci-layout"]).To(MatchJSON(`{"imageLayoutVersion":"1.0.0"}`))
	var index struct {
		Manifests []imageBlob `json:"manifests"`
	}
	decodeJSON(image.files["index.json"], &index)
	Expect(index.Manifests).To(HaveLen(1))
	var manifest struct {
		Config imageBlob   `json:"config"`
		Layers []imageBlob `json:"layers"`
	}
	decodeJSON(image.blob(index.Manifests[0], "application/vnd.oci.image.manifest.v1+json"), &manifest)

	vm := &v1.VirtualMachine{}
	decodeJSON(image.blob(manifest.Config, "application/vnd.kubevirt.virtualmachine.config.v1+json"), vm)
	Expect(vm.Kind).To(Equal("VirtualMachine"))
	Expect(vm.Name).To(Equal(name))
	Expect(vm.Namespace).To(BeEmpty())

	disks := map[string]string{}
	for _, layer := range manifest.Layers {
		packed, err := zstd.NewReader(bytes.NewReader(image.blob(layer, "application/vnd.kubevirt.disk.raw+zstd")))
		Expect(err).NotTo(HaveOccurred())
		disk, err := io.ReadAll(packed)
		packed.Close()
		Expect(err).NotTo(HaveOccurred())
		size, err := resource.ParseQuantity(layer.Annotations["io.kubevirt.disk.size"])
		Expect(err).NotTo(HaveOccurred())
		Expect(size.Value()).To(BeEquivalentTo(len(disk)))
		disks[layer.Annotations["io.kubevirt.disk.name"]] = sum(bytes.NewReader(disk))
	}
	Expect(disks).To(Equal(sums))
	Expect(claimsOf(vm)).To(ConsistOf(slices.Collect(maps.Keys(disks))))
	Expect(image.files).To(HaveLen(len(image.found)+2), "the archive has files that its index does not lead to")
}
