//! CPU prefetch: cache lines requested before they are needed.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor to load the cache line at an address. A hint: it reads nothing that the program observes, and the address
/// need not be valid.
#[inline(always)]
pub fn prefetch_line(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program observes, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Prefetches all cache lines of a value: see [`prefetch_line`].
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    let start = std::ptr::from_ref(value).addr();
    for line in (0..size_of::<T>()).step_by(LINE) {
        prefetch_line(start.wrapping_add(line));
    }
}
