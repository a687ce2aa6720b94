// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// grown is what libvirt 11.3 reports about the memory of a guest of 1 GiB that has taken 512 of the 768 MiB that it
// may.
const grown = `<domain type='kvm'>
  <maxMemory unit='KiB'>4194304</maxMemory>
  <memory unit='KiB'>4194304</memory>
  <currentMemory unit='KiB'>1572864</currentMemory>
  <devices>
    <memory model='virtio-mem'>
      <target>
        <size unit='KiB'>3145728</size>
        <node>0</node>
        <block unit='KiB'>2048</block>
        <requested unit='KiB'>786432</requested>
        <current unit='KiB'>524288</current>
      </target>
      <alias name='ua-memory'/>
    </memory>
    <memballoon model='virtio'/>
  </devices>
</domain>`

func TestMemoryOfALiveDomain(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		text                     string
		plugged, atBoot, granted uint64
		device                   bool
	}{
		"that has grown": {grown, 512 * mib, 1024 * mib, 1792 * mib, true},
		"that has not":   {`<domain type='kvm'><memory unit='KiB'>1048576</memory><devices/></domain>`, 0, 1024 * mib, 1024 * mib, false},
		"of a hostile launcher": {
			`<domain type='kvm'><memory>1</memory><devices><memory model='virtio-mem'><target><size>99</size>` +
				`<current unit='GiB'>18446744073709551615</current></target></memory></devices></domain>`, 1 << 62, 0, 0, true,
		},
	} {
		d := &hypervisor.Domain{XML: &libvirtxml.Domain{}}
		if err := d.XML.Unmarshal(tc.text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		plugged, err := hypervisor.ReadPlugged(t.Context(), tc.text)
		if err != nil || plugged != tc.plugged {
			t.Errorf("%s: plugged %d, %v, want %d", name, plugged, err, tc.plugged)
		}
		if got := d.AtBoot(); got != tc.atBoot {
			t.Errorf("%s: at boot %d, want %d", name, got, tc.atBoot)
		}
		if got := d.Granted(); got != tc.granted {
			t.Errorf("%s: granted %d, want %d", name, got, tc.granted)
		}
		if got := d.MemoryDevice() != nil; got != tc.device {
			t.Errorf("%s: device %t", name, got)
		}
	}
	var none *hypervisor.Domain
	if none.AtBoot() != 0 || none.Granted() != 0 || none.MemoryDevice() != nil {
		t.Error("no domain has memory")
	}
}
