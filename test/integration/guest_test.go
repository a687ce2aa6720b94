// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package integration_test

// These guests need no files on the host: they are a few bytes of real-mode code that write a line to the first
// serial port and halt.

const (
	tinyKernelMessage = "hello from the kernel"
	bootSectorMessage = "hello from the disk"
)

// printAndHalt returns the code. The message is at a 16-bit offset in the segment in DS.
func printAndHalt(message uint16) string {
	return "\xfc" + // cld
		"\xba\xf8\x03" + // mov dx, 0x3f8
		"\xbe" + string([]byte{byte(message), byte(message >> 8)}) + // mov si, message
		"\xac\x84\xc0" + // next: lodsb; test al, al
		"\x74\x03\xee" + // jz stop; out dx, al
		"\xeb\xf8" + // jmp next
		"\xf4\xeb\xfd" // stop: hlt; jmp stop
}

// tinyKernel returns the smallest Linux boot image (Documentation/arch/x86/boot.rst).
func tinyKernel() []byte {
	const (
		headerMagic, entry, code, message = 0x202, 0x200, 0x260, 0x290
		sector                            = 512
	)
	image := make([]byte, 3*sector)
	image[0x1f1] = 1                        // setup_sects: the real-mode part is the boot sector and one more
	copy(image[0x1fe:], "\x55\xaa")         // boot_flag
	copy(image[entry:], "\xeb\x5e")         // jmp code
	copy(image[headerMagic:], "HdrS")       // header
	copy(image[headerMagic+4:], "\x02\x02") // protocol 2.02
	image[0x211] = 1                        // loadflags: LOADED_HIGH
	copy(image[code:], printAndHalt(message))
	copy(image[message:], tinyKernelMessage+"\r\n")
	return image
}

// bootableDisk returns a disk with the guest in its boot sector.
func bootableDisk() []byte {
	const load, message = 0x7c00, 0x80
	disk := make([]byte, diskBytes)
	copy(disk, "\x31\xc0\x8e\xd8"+ // xor ax, ax; mov ds, ax
		printAndHalt(load+message))
	copy(disk[message:], bootSectorMessage+"\r\n")
	copy(disk[0x1fe:], "\x55\xaa")
	return disk
}

// echoMessage is the first output of the echoing guest.
const echoMessage = "say something"

// echoingDisk returns a disk whose boot sector writes back what it reads from the serial port.
func echoingDisk() []byte {
	const load, message = 0x7c00, 0x80
	disk := make([]byte, diskBytes)
	copy(disk, "\x31\xc0\x8e\xd8\xfc"+ // xor ax, ax; mov ds, ax; cld
		"\xba\xf8\x03"+ // mov dx, 0x3f8
		"\xbe"+string([]byte{(load + message) & 0xff, (load + message) >> 8})+ // mov si, message
		"\xac\x84\xc0\x74\x03\xee\xeb\xf8"+ // next: lodsb; test al, al; jz echo; out dx, al; jmp next
		"\xba\xfd\x03"+ // echo: mov dx, 0x3fd
		"\xec\xa8\x01\x74\xfb"+ // wait: in al, dx; test al, 1; jz wait
		"\xba\xf8\x03\xec\xee"+ // mov dx, 0x3f8; in al, dx; out dx, al
		"\xeb\xf1") // jmp echo
	copy(disk[message:], echoMessage+"\r\n")
	copy(disk[0x1fe:], "\x55\xaa")
	return disk
}
