//! Sizes of slots.

use crate::format::PAGE;

/// Sizes for each doubling. With eight, less than an eighth of a slot of more than eight pages is unused.
const STEPS: u32 = 8;
/// Number of sizes: the last is [`LARGEST`].
#[cfg(test)]
const CLASSES: u8 = 64;
/// Bytes of the largest slot: the size of the largest block in memory.
pub(super) const LARGEST: usize = 4 << 20;

/// Size of a slot: a multiple of a page up to eight pages, then one of eight equal steps between a power of two and the next.
///
/// Steps of one width would be too wide for blocks of a few pages or too many for blocks of megabytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotClass(u8);

impl SlotClass {
    /// Smallest size that holds `bytes` bytes; `None` above [`LARGEST`].
    pub(super) fn of(bytes: usize) -> Option<Self> {
        if bytes > LARGEST {
            return None;
        }
        let pages = bytes.div_ceil(PAGE).max(1) as u32;
        if pages <= STEPS {
            return Some(Self(pages as u8 - 1));
        }
        let doubling = (pages - 1).ilog2();
        let step = 1 << (doubling - STEPS.ilog2());
        let steps = (pages - (1 << doubling)).div_ceil(step);
        let before = (doubling - STEPS.ilog2() + 1) * STEPS;
        Some(Self((before + steps - 1) as u8))
    }

    /// Bytes of a slot.
    pub(super) fn bytes(self) -> u64 {
        let class = u32::from(self.0);
        let pages = if class < STEPS {
            class + 1
        } else {
            let doubling = class / STEPS - 1 + STEPS.ilog2();
            let step = 1 << (doubling - STEPS.ilog2());
            (1 << doubling) + (class % STEPS + 1) * step
        };
        u64::from(pages) * PAGE as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn slot_is_the_smallest_that_holds_its_bytes_and_wastes_little() {
        let sizes: Vec<u64> = (0..CLASSES).map(|class| SlotClass(class).bytes()).collect();
        assert!(sizes.is_sorted_by(|a, b| a < b));
        assert_eq!(sizes.last(), Some(&(LARGEST as u64)));
        for bytes in (1..=LARGEST)
            .step_by(1021)
            .chain([1, 4096, 4097, 32769, 1 << 20])
        {
            let class = SlotClass::of(bytes).unwrap();
            let slot = class.bytes();
            assert!(slot >= bytes as u64);
            let smaller = sizes[..usize::from(class.0)].last();
            assert!(
                smaller.is_none_or(|smaller| *smaller < bytes as u64),
                "{bytes}"
            );
            assert!(
                slot - bytes as u64 <= (slot / 8).max(PAGE as u64),
                "{bytes}: {slot}"
            );
        }
        for power in 12..=22 {
            assert_eq!(SlotClass::of(1 << power).unwrap().bytes(), 1 << power);
        }
        assert_eq!(SlotClass::of(0).unwrap().bytes(), PAGE as u64);
        assert!(SlotClass::of(LARGEST + 1).is_none());
    }
}
