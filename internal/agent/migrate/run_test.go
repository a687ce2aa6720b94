// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestMemoryIsCompressedOverSlowLinks(t *testing.T) {
	const zstd, none = v1.MigrationCompressionZstd, v1.MigrationCompressionNone
	for name, test := range map[string]struct {
		bandwidth string
		requested v1.MigrationCompression
		postCopy  bool
		dedicated bool
		want      v1.MigrationCompression
	}{
		"no limit":                {want: none},
		"a limit of 0":            {bandwidth: "0", want: none},
		"a slow link":             {bandwidth: "64Mi", want: zstd},
		"the slowest":             {bandwidth: "10Mi", want: zstd},
		"too slow for packets":    {bandwidth: "9Mi", want: none},
		"the fastest of the slow": {bandwidth: "128Mi", want: zstd},
		"a fast link":             {bandwidth: "129Mi", want: none},
		"a slow link, disabled":   {bandwidth: "64Mi", requested: none, want: none},
		"enabled on any link":     {requested: zstd, want: zstd},
		"dedicated CPUs":          {bandwidth: "64Mi", dedicated: true, want: none},
		"dedicated CPUs, enabled": {bandwidth: "64Mi", dedicated: true, requested: zstd, want: zstd},
		// QEMU would refuse the whole migration.
		"post-copy allowed":          {bandwidth: "64Mi", postCopy: true, want: none},
		"post-copy allowed, enabled": {requested: zstd, postCopy: true, want: none},
	} {
		t.Run(name, func(t *testing.T) {
			options := &v1.VMIMConfigurationOptions{AllowPostCopy: &test.postCopy}
			if test.bandwidth != "" {
				options.BandwidthPerMigration = ptr.To(resource.MustParse(test.bandwidth))
			}
			if test.requested != "" {
				options.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{Compression: &test.requested}
			}
			vmi := &v1.VirtualMachineInstance{}
			vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: test.dedicated}
			r := &hypervisor.TransferRequest{}
			configure(r, vmi, options)
			if got := r.Compression; got != string(test.want) && (got != "" || test.want != none) {
				t.Errorf("compressed by %q, want %q", got, test.want)
			}
			if several := r.Parallel > 0; several != (test.want != none) {
				t.Errorf("several connections: %d", r.Parallel)
			}
			if r.PostCopy != test.postCopy {
				t.Errorf("post-copy: %t", r.PostCopy)
			}
		})
	}
}

// Compressed transfers send more than libvirt's limit, so the limit is lowered.
func TestCompressedMemoryKeepsToItsBandwidth(t *testing.T) {
	zstd := v1.MigrationCompressionZstd
	for bandwidth, want := range map[string]uint64{"10Mi": 5 << 20, "16Mi": 10 << 20, "64Mi": 55 << 20, "1Mi": 5 << 20,
		"1Gi": 1015 << 20} {
		r := &hypervisor.TransferRequest{}
		configure(r, &v1.VirtualMachineInstance{}, &v1.VMIMConfigurationOptions{
			BandwidthPerMigration:        ptr.To(resource.MustParse(bandwidth)),
			ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: &zstd},
		})
		if r.Bandwidth != want || r.Parallel != 1 {
			t.Errorf("%s: %d bytes/s over %d connections, want %d over one", bandwidth, r.Bandwidth, r.Parallel, want)
		}
	}
	r := &hypervisor.TransferRequest{}
	configure(r, &v1.VirtualMachineInstance{}, &v1.VMIMConfigurationOptions{
		ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{Compression: &zstd},
	})
	if r.Bandwidth != 0 || r.Parallel != compressedChannels {
		t.Errorf("without a limit: %d bytes/s over %d connections", r.Bandwidth, r.Parallel)
	}
}
