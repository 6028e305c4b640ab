//! Memory asked for before it is needed.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Asks the processor for the cache line at an address, so that it is near when it is used soon. A hint: nothing is read, and the
/// address need not be one of anything.
#[inline(always)]
pub fn fetch_ahead(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program sees, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// As [`fetch_ahead`], for all lines of a value.
#[inline(always)]
pub fn fetch_value_ahead<T>(value: &T) {
    let begin = std::ptr::from_ref(value).addr();
    for line in (0..size_of::<T>()).step_by(LINE) {
        fetch_ahead(begin.wrapping_add(line));
    }
}
