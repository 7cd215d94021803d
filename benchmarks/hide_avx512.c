/* Hides AVX-512 and AMX from a program, to measure what it does without them.

   Libraries choose their kernels by what CPUID says. On Linux a process may let
   the instruction fault (arch_prctl, ARCH_SET_CPUID) where the processor or the
   virtual machine has that; here the handler asks in its place, and leaves the
   bits of AVX-512 and AMX out of the answer. Threads and forks inherit it; a
   program that is executed begins anew, which LD_PRELOAD sees to.

     cc -O2 -shared -fPIC -o hide_avx512.so benchmarks/hide_avx512.c
     LD_PRELOAD=./hide_avx512.so python -m experiments.run ...

   Programs compiled with AVX-512 and those compiled without are kept apart, and
   rows say AVX2: both ask what a program is told (`experiments.setup.cpu`).
   What is measured so is this machine without these instructions: its memory
   and caches stay what they are. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

#define BIT(n) (UINT32_C(1) << (n))

static struct sigaction before;

static long let_cpuid_answer(int yes) {
  return syscall(SYS_arch_prctl, ARCH_SET_CPUID, (long)yes);
}

static void leave_out(uint32_t leaf, uint32_t subleaf, uint32_t *a, uint32_t *b,
                      uint32_t *c, uint32_t *d) {
  if (leaf == 7 && subleaf == 0) {
    /* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
    *b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) |
            BIT(30) | BIT(31));
    /* VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
    *c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));
    /* 4VNNIW, 4FMAPS, VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8 */
    *d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));
  } else if (leaf == 7 && subleaf == 1) {
    *a &= ~(BIT(5) | BIT(21)); /* AVX512-BF16, AMX-FP16 */
    *d &= ~(BIT(8) | BIT(19)); /* AMX-COMPLEX, AVX10 */
  } else if (leaf == 0xd && subleaf == 0) {
    *a &= ~UINT32_C(0x600e0); /* state of masks, wide registers and tiles */
  }
}

static void answer(int signal_number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)registers[REG_RIP];
  /* A fault of an instruction has the kernel's code; one of an address not. */
  if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
    if (before.sa_flags & SA_SIGINFO) {
      before.sa_sigaction(signal_number, info, context);
    } else {
      signal(signal_number, SIG_DFL); /* It comes again, and ends this. */
    }
    return;
  }
  uint32_t a, b, c, d;
  uint32_t leaf = (uint32_t)registers[REG_RAX];
  uint32_t subleaf = (uint32_t)registers[REG_RCX];
  let_cpuid_answer(1);
  __cpuid_count(leaf, subleaf, a, b, c, d);
  let_cpuid_answer(0);
  leave_out(leaf, subleaf, &a, &b, &c, &d);
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  if (let_cpuid_answer(0)) {
    fputs("hide_avx512: CPUID cannot be made to fault here\n", stderr);
    exit(1);
  }
}
