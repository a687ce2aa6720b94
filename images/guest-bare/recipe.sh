# shellcheck shell=bash disable=SC2154 # hack/images/guest.sh sets the variables and runs make_guest
# A guest without an operating system, of one program: a kernel for firmware.kernelBoot (main.c says what it does).
#
# It runs where Linux does not: on a KVM that interprets the guest's instructions, because its host has no hardware
# support. Instructions of a 386 only, and no coprocessor.

make_guest() {
	need gcc ld
	mkdir -p "$made/boot"
	gcc -m32 -march=i386 -mgeneral-regs-only -ffreestanding -fno-pic -fno-pie -no-pie -fno-stack-protector \
		-fcf-protection=none -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns -std=c11 -O2 \
		-Wall -Wextra -Werror -nostdlib -static -Wl,-T,"$recipe/guest.ld",--build-id=none \
		-o "$made/boot/$name.elf" "$recipe/start.S" "$recipe/main.c"
	strip "$made/boot/$name.elf"
}
