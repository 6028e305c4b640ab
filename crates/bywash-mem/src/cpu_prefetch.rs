//! CPU prefetch: cache lines requested before they are needed.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor to load the cache line at an address. A hint: it reads nothing that the program observes, and the address
/// need not be valid.
#[inline(always)]
pub(crate) fn prefetch_line(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program observes, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Asks the processor to load the cache line at an address for a write: no other core keeps a copy. A plain prefetch of a line that
/// another core wrote last gets a shared copy, and the write then waits for a second message to that core. A
/// hint, for which the address need not be valid.
#[inline(always)]
pub fn prefetch_line_for_write(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as in `prefetch_line`. Each 64-bit x86 processor decodes this opcode; those without the feature take it for a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches a value whose first cache line alone is written: this line for a write, the others to be read.
#[inline(always)]
pub fn prefetch_written_first<T>(value: &T) {
    let start = std::ptr::from_ref(value).addr();
    prefetch_line_for_write(start);
    for line in (start + LINE..start + size_of::<T>()).step_by(LINE) {
        prefetch_line(line);
    }
}
