/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright The Vireo Authors */

/* The entry by Xen's PVH protocol, as qemu -kernel does it: 32-bit protected mode without paging, flat segments, and
   the address of struct hvm_start_info in EBX. */

#define CODE 0x08
#define DATA 0x10

	.section .note.pvh, "a", @note
	.balign	4
	.long	4, 4, 18			/* lengths of name and value, XEN_ELFNOTE_PHYS32_ENTRY */
	.asciz	"Xen"
	.long	start

	.text
	.globl	start
start:
	cli
	cld
	lgdt	gdt_pointer
	ljmp	$CODE, $1f
1:	movl	$DATA, %eax
	movl	%eax, %ds
	movl	%eax, %es
	movl	%eax, %ss
	movl	$stack_top, %esp
	pushl	%ebx
	call	guest

/* void wait(void): halts until the next interrupt.

   Interrupts are enabled here only, so each of them finds the processor halted. Its handler therefore needs no IRET,
   which KVM cannot emulate in protected mode: it drops what the processor has pushed, and returns in wait's place. The
   interrupt gate has disabled interrupts again. */
	.globl	wait
wait:
	sti
1:	hlt
	jmp	1b

/* The timer's interrupt. */
	.globl	on_tick
on_tick:
	incl	ticks
	movb	$0x20, %al			/* end of interrupt, to the first 8259 */
	outb	%al, $0x20
	.globl	on_spurious
on_spurious:
	addl	$12, %esp			/* EIP, CS, EFLAGS */
	ret

/* One entry of 8 bytes for each exception. None is expected. */
	.balign	8
	.globl	on_exception
on_exception:
	.set	vector, 0
	.rept	32
	.balign	8
	pushl	$vector
	jmp	exception
	.set	vector, vector + 1
	.endr
exception:
	call	fault				/* with the vector and the processor's frame as arguments */

	.section .rodata
	.balign	8
gdt:
	.quad	0
	.quad	0x00cf9b000000ffff		/* code: 0 to 4 GiB */
	.quad	0x00cf93000000ffff		/* data: 0 to 4 GiB */
gdt_pointer:
	.word	. - gdt - 1
	.long	gdt

	.bss
	.balign	16
	.skip	16384
stack_top:

	.section .note.GNU-stack, "", @progbits
