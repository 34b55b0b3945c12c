//! The instructions that access the program's memory.
//!
//! # What the unsafe code here relies on
//!
//! Everything from `rdmux_link_guarded_begin` to `rdmux_link_guarded_end` may fault at any instruction: it changes no
//! callee-saved register, and leaves the stack pointer where it was, so that continuing at `rdmux_link_guarded_fault` is a return
//! from the routine, with 1. Only the functions here call the routines.
//!
//! SSE2, which every x86-64 has, copies as fast as the C library does on the processors measured (`benches/links.rs`). In each
//! size class the last byte is among those stored last, and stores go upwards: a program that polls for the last byte of an RDMA
//! WRITE then sees the others.

use std::arch::global_asm;

global_asm!(
    ".pushsection .text.rdmux_link_guarded,\"ax\",@progbits",
    ".p2align 6",
    ".hidden rdmux_link_guarded_begin",
    ".globl rdmux_link_guarded_begin",
    "rdmux_link_guarded_begin:",
    //
    // copy(rdi: to, rsi: from, rdx: len) -> eax
    ".hidden rdmux_link_guarded_copy",
    ".globl rdmux_link_guarded_copy",
    ".type rdmux_link_guarded_copy,@function",
    "rdmux_link_guarded_copy:",
    ".cfi_startproc",
    "cmp rdx, 16",
    "jae 16f",
    "cmp edx, 8",
    "jae 8f",
    "cmp edx, 4",
    "jae 4f",
    "test edx, edx",
    "jz 99f",
    // 1 to 3: the first, the middle one, the last.
    "mov r8, rdx",
    "shr r8",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + r8]",
    "movzx r9d, byte ptr [rsi + rdx - 1]",
    "mov byte ptr [rdi], al",
    "mov byte ptr [rdi + r8], cl",
    "mov byte ptr [rdi + rdx - 1], r9b",
    "99:",
    "xor eax, eax",
    "ret",
    // 4 to 7, 8 to 15, 16 to 32, 33 to 64: halves that overlap.
    "4:",
    "mov eax, dword ptr [rsi]",
    "mov ecx, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], eax",
    "mov dword ptr [rdi + rdx - 4], ecx",
    "xor eax, eax",
    "ret",
    "8:",
    "mov rax, qword ptr [rsi]",
    "mov rcx, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rax",
    "mov qword ptr [rdi + rdx - 8], rcx",
    "xor eax, eax",
    "ret",
    "16:",
    "movups xmm0, xmmword ptr [rsi]",
    "cmp rdx, 32",
    "ja 32f",
    "movups xmm1, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + rdx - 16], xmm1",
    "xor eax, eax",
    "ret",
    "32:",
    "cmp rdx, 64",
    "ja 64f",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmm2, xmmword ptr [rsi + rdx - 32]",
    "movups xmm3, xmmword ptr [rsi + rdx - 16]",
    "movups xmmword ptr [rdi], xmm0",
    "movups xmmword ptr [rdi + 16], xmm1",
    "movups xmmword ptr [rdi + rdx - 32], xmm2",
    "movups xmmword ptr [rdi + rdx - 16], xmm3",
    "xor eax, eax",
    "ret",
    // More: 16 bytes, then 64 at a time to aligned places, then the last 64.
    "64:",
    "lea r8, [rdi + rdx]",
    "lea r9, [rsi + rdx]",
    "mov rcx, rdi",
    "and ecx, 15",
    "sub rcx, 16",
    "movups xmmword ptr [rdi], xmm0",
    "sub rdi, rcx",
    "sub rsi, rcx",
    "add rdx, rcx",
    "sub rdx, 64",
    "jbe 66f",
    ".p2align 4",
    "65:",
    "movups xmm0, xmmword ptr [rsi]",
    "movups xmm1, xmmword ptr [rsi + 16]",
    "movups xmm2, xmmword ptr [rsi + 32]",
    "movups xmm3, xmmword ptr [rsi + 48]",
    "movaps xmmword ptr [rdi], xmm0",
    "movaps xmmword ptr [rdi + 16], xmm1",
    "movaps xmmword ptr [rdi + 32], xmm2",
    "movaps xmmword ptr [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "ja 65b",
    "66:",
    "movups xmm0, xmmword ptr [r9 - 64]",
    "movups xmm1, xmmword ptr [r9 - 48]",
    "movups xmm2, xmmword ptr [r9 - 32]",
    "movups xmm3, xmmword ptr [r9 - 16]",
    "movups xmmword ptr [r8 - 64], xmm0",
    "movups xmmword ptr [r8 - 48], xmm1",
    "movups xmmword ptr [r8 - 32], xmm2",
    "movups xmmword ptr [r8 - 16], xmm3",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size rdmux_link_guarded_copy, . - rdmux_link_guarded_copy",
    //
    // fetch_add(rdi: cell, rsi: add, rdx: before) -> eax
    ".hidden rdmux_link_guarded_fetch_add",
    ".globl rdmux_link_guarded_fetch_add",
    ".type rdmux_link_guarded_fetch_add,@function",
    "rdmux_link_guarded_fetch_add:",
    ".cfi_startproc",
    "lock xadd qword ptr [rdi], rsi",
    "mov qword ptr [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size rdmux_link_guarded_fetch_add, . - rdmux_link_guarded_fetch_add",
    //
    // compare_swap(rdi: cell, rsi: compare, rdx: swap, rcx: before) -> eax
    ".hidden rdmux_link_guarded_compare_swap",
    ".globl rdmux_link_guarded_compare_swap",
    ".type rdmux_link_guarded_compare_swap,@function",
    "rdmux_link_guarded_compare_swap:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg qword ptr [rdi], rdx",
    "mov qword ptr [rcx], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size rdmux_link_guarded_compare_swap, . - rdmux_link_guarded_compare_swap",
    //
    ".hidden rdmux_link_guarded_end",
    ".globl rdmux_link_guarded_end",
    "rdmux_link_guarded_end:",
    ".hidden rdmux_link_guarded_fault",
    ".globl rdmux_link_guarded_fault",
    ".type rdmux_link_guarded_fault,@function",
    "rdmux_link_guarded_fault:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size rdmux_link_guarded_fault, . - rdmux_link_guarded_fault",
    ".popsection",
);

unsafe extern "C" {
    fn rdmux_link_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> u32;
    fn rdmux_link_guarded_fetch_add(cell: *mut u64, add: u64, before: *mut u64) -> u32;
    fn rdmux_link_guarded_compare_swap(
        cell: *mut u64,
        compare: u64,
        swap: u64,
        before: *mut u64,
    ) -> u32;
    fn rdmux_link_guarded_begin();
    fn rdmux_link_guarded_end();
    fn rdmux_link_guarded_fault();
}

/// Whether this machine has the routines.
pub(super) const EXISTS: bool = true;

/// Copies, and returns 0, or 1 after a fault that the handler caught.
///
/// # Safety
///
/// Each range is valid, or the handler is installed. The bytes at `to` may be overwritten.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promise is the routine's requirement.
    unsafe { rdmux_link_guarded_copy(to, from, len) }
}

/// Adds to an aligned cell and stores the previous value in `before`. Returns as [`copy`].
///
/// # Safety
///
/// As for [`copy`]; `before` is valid.
pub(super) unsafe fn fetch_add(cell: *mut u64, add: u64, before: *mut u64) -> u32 {
    // SAFETY: the caller's promise is the routine's requirement.
    unsafe { rdmux_link_guarded_fetch_add(cell, add, before) }
}

/// Swaps an aligned cell if it equals `compare`, and stores the previous value in `before`. Returns as [`copy`].
///
/// # Safety
///
/// As for [`fetch_add`].
pub(super) unsafe fn compare_swap(
    cell: *mut u64,
    compare: u64,
    swap: u64,
    before: *mut u64,
) -> u32 {
    // SAFETY: the caller's promise is the routine's requirement.
    unsafe { rdmux_link_guarded_compare_swap(cell, compare, swap, before) }
}

/// Makes a thread that faulted in one of the routines return from it. Returns whether it was in one.
///
/// # Safety
///
/// `context` is that of a handler with `SA_SIGINFO`, for a fault that the thread itself caused.
pub(super) unsafe fn resume(context: *mut libc::ucontext_t) -> bool {
    let address = |label: unsafe extern "C" fn()| label as *const () as i64;
    let begin = address(rdmux_link_guarded_begin);
    let end = address(rdmux_link_guarded_end);
    // SAFETY: by the caller's promise.
    let rip = unsafe { &mut (&mut (*context).uc_mcontext.gregs)[libc::REG_RIP as usize] };
    let inside = (begin..end).contains(rip);
    if inside {
        *rip = address(rdmux_link_guarded_fault);
    }
    inside
}
