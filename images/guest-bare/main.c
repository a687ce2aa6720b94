/* SPDX-License-Identifier: Apache-2.0 */
/* Copyright The Vireo Authors */

/* A guest for tests of virtual machines, without an operating system.

   It has a timer of 100 Hz and halts in between. With each tick it counts in memory and rewrites some pages of a block
   of 8 MiB. It echoes what it reads from COM1, and writes a line like this to COM1 each second:

     guest-bare: second=7 ticks=700 clock=kvmclock cpus=2 written=16000 sum=01f07c00 wrong=0

   second   seconds of its clock: kvmclock if there is one, otherwise the ACPI timer
   ticks    interrupts of the timer
   cpus     the processors that the machine has now; the guest itself uses one
   written  pages written until now. Page n of all these, counted from 0, has the number n in all its words, and is at
            place n modulo 2048 of the block, which thus has the last 2048 of them
   sum      the sum of one word of each page of the block, read again, modulo 2^32: the sum of these pages' numbers
   wrong    pages of which a word had changed when they were to be rewritten

   These keys do something, when read from COM1:

     q  powers off by ACPI, as the machine's power button does
     p  reports a panic, if the machine has a pvpanic device
     x  executes an instruction that KVM cannot emulate, which is an internal error of KVM

   Of the machine it needs what QEMU's pc and q35 have: ACPI tables, an 8259, an 8254, a 16550, fw_cfg. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	TICKS_PER_SECOND = 100,
	PAGES = 2048,
	WORDS_PER_PAGE = 1024,
	PAGES_PER_TICK = 4,
};

/* ---- Instructions ---- */

static inline void outb(uint16_t port, uint8_t value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline void outw(uint16_t port, uint16_t value) { __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port)); }

static inline uint8_t inb(uint16_t port)
{
	uint8_t value;
	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline uint16_t inw(uint16_t port)
{
	uint16_t value;
	__asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline uint32_t inl(uint16_t port)
{
	uint32_t value;
	__asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static inline uint64_t rdtsc(void)
{
	uint64_t value;
	__asm__ volatile("rdtsc" : "=A"(value));
	return value;
}

static inline void cpuid(uint32_t leaf, uint32_t registers[4])
{
	__asm__ volatile("cpuid"
			 : "=a"(registers[0]), "=b"(registers[1]), "=c"(registers[2]), "=d"(registers[3])
			 : "a"(leaf), "c"(0));
}

static inline void wrmsr(uint32_t msr, uint64_t value)
{
	__asm__ volatile("wrmsr" : : "c"(msr), "A"(value) : "memory");
}

static inline void barrier(void) { __asm__ volatile("" : : : "memory"); }

static _Noreturn void stop(void)
{
	for (;;)
		__asm__ volatile("cli; hlt");
}

/* ---- Console: the 16550 of COM1 ---- */

enum { COM1 = 0x3f8, COM1_FIFO = COM1 + 2, COM1_LINE = COM1 + 3, COM1_MODEM = COM1 + 4, COM1_STATUS = COM1 + 5 };
enum { STATUS_READABLE = 0x01, STATUS_WRITABLE = 0x20 };

static void start_console(void)
{
	outb(COM1_LINE, 0x80);  /* access the divisor: */
	outb(COM1, 1);          /* 115200 baud */
	outb(COM1 + 1, 0);
	outb(COM1_LINE, 0x03);  /* 8 bits, no parity */
	outb(COM1 + 1, 0);      /* no interrupts */
	outb(COM1_FIFO, 0x07);  /* enabled and empty */
	outb(COM1_MODEM, 0x03); /* ready */
}

static void put(char c)
{
	while (!(inb(COM1_STATUS) & STATUS_WRITABLE))
		;
	outb(COM1, (uint8_t)c);
}

static void put_text(const char *text)
{
	for (; *text; text++)
		put(*text);
}

static void put_decimal(const char *name, uint32_t value)
{
	char digits[11];
	char *first = digits + sizeof(digits) - 1;

	*first = 0;
	do {
		*--first = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	put_text(name);
	put_text(first);
}

static void put_hex(const char *name, uint32_t value)
{
	put_text(name);
	for (int shift = 28; shift >= 0; shift -= 4)
		put("0123456789abcdef"[value >> shift & 15]);
}

/* ---- Interrupts: the timer's, by the 8259 and the 8254; see start.S ---- */

enum { PIC1 = 0x20, PIC2 = 0xa0, PIT_CHANNEL0 = 0x40, PIT_COMMAND = 0x43, PIT_HZ = 1193182 };
enum { FIRST_IRQ = 32, VECTORS = 48, CODE_SEGMENT = 0x08, INTERRUPT_GATE = 0x8e00 };

void wait(void);
extern char on_tick[], on_spurious[], on_exception[][8];

volatile uint32_t ticks;

static struct {
	uint16_t low, segment, type, high;
} gates[VECTORS];

static void set_gate(int vector, const char *handler)
{
	gates[vector].low = (uint16_t)(uintptr_t)handler;
	gates[vector].segment = CODE_SEGMENT;
	gates[vector].type = INTERRUPT_GATE;
	gates[vector].high = (uint16_t)((uintptr_t)handler >> 16);
}

/* fault reports an exception. The error is the processor's error code, or what it pushes first if there is none. */
_Noreturn void fault(uint32_t vector, uint32_t error, uint32_t second, uint32_t third)
{
	put_decimal("\r\nguest-bare: exception ", vector);
	put_hex(": ", error);
	put_hex(" ", second);
	put_hex(" ", third);
	put_text("\r\n");
	stop();
}

static void start_timer(void)
{
	struct __attribute__((packed)) {
		uint16_t limit;
		uint32_t base;
	} idt = {sizeof(gates) - 1, (uint32_t)(uintptr_t)gates};

	for (int vector = 0; vector < FIRST_IRQ; vector++)
		set_gate(vector, on_exception[vector]);
	for (int vector = FIRST_IRQ; vector < VECTORS; vector++)
		set_gate(vector, on_spurious);
	set_gate(FIRST_IRQ, on_tick);
	__asm__ volatile("lidt %0" : : "m"(idt));

	outb(PIC1, 0x11);                    /* initialize: cascaded, edges */
	outb(PIC2, 0x11);
	outb(PIC1 + 1, FIRST_IRQ);           /* vectors */
	outb(PIC2 + 1, FIRST_IRQ + 8);
	outb(PIC1 + 1, 0x04);                /* the second is at input 2 of the first */
	outb(PIC2 + 1, 0x02);
	outb(PIC1 + 1, 0x01);                /* 8086 mode */
	outb(PIC2 + 1, 0x01);
	outb(PIC1 + 1, 0xfe);                /* only the timer's input */
	outb(PIC2 + 1, 0xff);
	outb(PIT_COMMAND, 0x34);             /* channel 0, rate generator */
	outb(PIT_CHANNEL0, (PIT_HZ / TICKS_PER_SECOND) & 0xff);
	outb(PIT_CHANNEL0, PIT_HZ / TICKS_PER_SECOND >> 8);
}

/* ---- ACPI: the ports of the fixed hardware ---- */

enum {
	PM1_POWER_BUTTON = 1 << 8, /* of the status and of the enable register */
	PM1_SLEEP = 1 << 13,       /* of the control register, with the sleep type: S5 is 0 in QEMU */
};

/* Ports, 0 before find_acpi. */
static uint16_t pm1_status, pm1_enable, pm1_control, pm_timer;

struct start_info { /* struct hvm_start_info, version 1, to its only field of interest */
	uint32_t magic, version, flags, modules;
	uint64_t module_list, command_line, rsdp;
};

static uint32_t word_at(const uint8_t *table, size_t offset) { return *(const uint32_t *)(table + offset); }

/* find_acpi finds the FADT: start info, RSDP, RSDT, FADT. */
static void find_acpi(const struct start_info *info)
{
	enum { RSDP_RSDT = 16, LENGTH = 4, HEADER = 36, FACP = 0x50434146 };
	enum { FADT_PM1A_EVENT = 56, FADT_PM1A_CONTROL = 64, FADT_PM_TIMER = 76, FADT_PM1_EVENT_LENGTH = 88 };
	const uint8_t *rsdt = (const uint8_t *)word_at((const uint8_t *)(uintptr_t)info->rsdp, RSDP_RSDT);

	for (size_t offset = HEADER; offset < word_at(rsdt, LENGTH); offset += sizeof(uint32_t)) {
		const uint8_t *fadt = (const uint8_t *)word_at(rsdt, offset);

		if (word_at(fadt, 0) != FACP)
			continue;
		pm1_status = (uint16_t)word_at(fadt, FADT_PM1A_EVENT);
		pm1_enable = pm1_status + fadt[FADT_PM1_EVENT_LENGTH] / 2;
		pm1_control = (uint16_t)word_at(fadt, FADT_PM1A_CONTROL);
		pm_timer = (uint16_t)word_at(fadt, FADT_PM_TIMER);
		outw(pm1_enable, PM1_POWER_BUTTON);
		return;
	}
	put_text("guest-bare: the machine has no FADT\r\n");
	stop();
}

static void power_off(void)
{
	put_text("\r\nguest-bare: powering off\r\n");
	outw(pm1_control, PM1_SLEEP);
}

/* ---- Clocks ---- */

/* struct pvclock_vcpu_time_info, which KVM updates. */
static volatile struct {
	uint32_t version, padding;
	uint64_t tsc, nanoseconds;
	uint32_t multiplier;
	int8_t shift;
	uint8_t flags, padding2[2];
} kvmclock __attribute__((aligned(32)));

/* The clock: kvmclock in nanoseconds, or the ACPI timer. */
static struct {
	const char *name;
	uint64_t (*now)(void);
	uint64_t mask; /* its value overflows after this one */
	uint32_t hertz;
} clock;

static uint64_t kvmclock_now(void)
{
	uint32_t version;
	uint64_t cycles, now;

	do { /* until KVM did not change it meanwhile, or for the first time */
		version = kvmclock.version;
		barrier();
		cycles = rdtsc() - kvmclock.tsc;
		cycles = kvmclock.shift < 0 ? cycles >> -kvmclock.shift : cycles << kvmclock.shift;
		now = kvmclock.nanoseconds + (cycles >> 32) * kvmclock.multiplier +
		      ((uint64_t)(uint32_t)cycles * kvmclock.multiplier >> 32);
		barrier();
	} while (!version || (version & 1) || version != kvmclock.version);
	return now;
}

static uint64_t acpi_now(void) { return inl(pm_timer); }

static bool has_kvmclock(void)
{
	enum { FEATURES = 1, KVM = 0x40000000, KVM_FEATURES, CLOCKSOURCE2 = 1 << 3 };
	uint32_t r[4];

	cpuid(FEATURES, r);
	if (!(r[2] >> 31)) /* no hypervisor */
		return false;
	cpuid(KVM, r);
	if (r[1] != 0x4b4d564b || r[2] != 0x564b4d56 || r[3] != 0x4d) /* KVMKVMKVM */
		return false;
	cpuid(KVM_FEATURES, r);
	return r[0] & CLOCKSOURCE2;
}

static void start_clock(void)
{
	enum { MSR_KVM_SYSTEM_TIME_NEW = 0x4b564d01, ENABLE = 1 };

	clock.name = "acpi";
	clock.now = acpi_now;
	clock.mask = 0xffffff;
	clock.hertz = 3579545;
	if (!has_kvmclock())
		return;
	wrmsr(MSR_KVM_SYSTEM_TIME_NEW, (uint32_t)(uintptr_t)&kvmclock | ENABLE);
	clock.name = "kvmclock";
	clock.now = kvmclock_now;
	clock.mask = UINT64_MAX;
	clock.hertz = 1000000000;
}

/* second_passed tells whether a second of the clock has passed since it last said so. It must be called more often than
   the ACPI timer overflows, which is each 4.7 s. */
static bool second_passed(void)
{
	static uint64_t last, passed;
	uint64_t now = clock.now();

	if (last)
		passed += (now - last) & clock.mask;
	last = now;
	if (passed < clock.hertz)
		return false;
	passed -= clock.hertz;
	return true;
}

/* ---- Memory ---- */

static uint32_t block[PAGES][WORDS_PER_PAGE] __attribute__((aligned(4096)));
static uint32_t written, wrong;

/* has tells whether each word of the page is the value. */
static bool has(const uint32_t *page, uint32_t value)
{
	uint32_t left = WORDS_PER_PAGE;
	bool equal;

	__asm__ volatile("repe scasl" : "+D"(page), "+c"(left), "=@ccz"(equal) : "a"(value) : "memory");
	return equal;
}

static void write_page(void)
{
	uint32_t *page = block[written % PAGES];
	uint32_t left = WORDS_PER_PAGE;

	if (written >= PAGES && !has(page, written - PAGES))
		wrong++;
	__asm__ volatile("rep stosl" : "+D"(page), "+c"(left) : "a"(written) : "memory");
	written++;
}

/* sum adds one word of each page, another one each time. */
static uint32_t sum(void)
{
	static uint32_t place;
	uint32_t total = 0;

	place = (place + 1) % WORDS_PER_PAGE;
	for (int page = 0; page < PAGES; page++)
		total += block[page][place];
	return total;
}

/* ---- The machine ---- */

/* cpus returns the number of processors, which QEMU keeps up to date when it plugs one. */
static uint32_t cpus(void)
{
	enum { FW_CFG_SELECTOR = 0x510, FW_CFG_DATA = 0x511, FW_CFG_NB_CPUS = 5 };
	uint32_t low;

	outw(FW_CFG_SELECTOR, FW_CFG_NB_CPUS);
	low = inb(FW_CFG_DATA);
	return low | (uint32_t)inb(FW_CFG_DATA) << 8;
}

static void panic(void)
{
	enum { PVPANIC = 0x505, PANICKED = 1, NO_DEVICE = 0xff };

	if (inb(PVPANIC) == NO_DEVICE) {
		put_text("\r\nguest-bare: the machine has no pvpanic device\r\n");
		return;
	}
	put_text("\r\nguest-bare: panic\r\n");
	outb(PVPANIC, PANICKED);
}

/* fail adds a register of MMX to what is no memory. With hardware support, the processor executes it, and KVM has to
   emulate the access; without, KVM has to emulate all of it. It can do neither. */
static void fail(void)
{
	enum { NO_MEMORY = 0xfed00000 };

	put_text("\r\nguest-bare: an instruction that KVM cannot emulate\r\n");
	__asm__ volatile("paddd (%0), %%mm0" : : "r"(NO_MEMORY));
	put_text("guest-bare: it was executed\r\n");
}

static void read_console(void)
{
	while (inb(COM1_STATUS) & STATUS_READABLE) {
		char c = (char)inb(COM1);

		put(c);
		if (c == 'q')
			power_off();
		if (c == 'p')
			panic();
		if (c == 'x')
			fail();
	}
}

static void report(uint32_t second)
{
	put_decimal("guest-bare: second=", second);
	put_decimal(" ticks=", ticks);
	put_text(" clock=");
	put_text(clock.name);
	put_decimal(" cpus=", cpus());
	put_decimal(" written=", written);
	put_hex(" sum=", sum());
	put_decimal(" wrong=", wrong);
	put_text("\r\n");
}

_Noreturn void guest(const struct start_info *info)
{
	uint32_t second = 0;

	start_console();
	put_text("guest-bare: started\r\n");
	find_acpi(info);
	start_clock();
	start_timer();
	put_text("guest-bare: ready\r\n");
	for (;;) {
		wait();
		for (int pages = 0; pages < PAGES_PER_TICK; pages++)
			write_page();
		read_console();
		if (inw(pm1_status) & PM1_POWER_BUTTON)
			power_off();
		if (second_passed())
			report(++second);
	}
}
