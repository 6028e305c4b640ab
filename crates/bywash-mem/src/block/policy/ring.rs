//! Rings of slots, linked through one table of nodes: 16 bytes a slot, and no allocation to insert or remove.

/// The policy's record of a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Node {
    prev: u32,
    next: u32,
    /// Probation: loads between the block's previous use and its load, 0 if unknown. Protected: load count when it was last seen used.
    pub(super) stamp: u32,
    pub(super) segment: Segment,
    /// Number of its priority class.
    pub(super) class: u8,
    /// Uses seen of a protected block, up to `MAX_SCORE`, halved by each look that finds none.
    pub(super) score: u8,
}

impl Node {
    pub(super) fn on_probation(stamp: u32, class: u8) -> Self {
        Self {
            stamp,
            segment: Segment::Probation,
            class,
            ..Self::default()
        }
    }
}

const _: () = assert!(size_of::<Node>() == 16);

/// Ring that a slot is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Segment {
    #[default]
    None,
    Probation,
    Protected,
}

/// A circle of slots with a clock hand. A slot is inserted just behind the hand, so the hand reaches it last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ring {
    /// Slot at the hand; meaningless in an empty ring.
    hand: u32,
    len: u32,
}

impl Ring {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Slot at the hand.
    pub(super) fn hand(&self) -> Option<u32> {
        (self.len > 0).then_some(self.hand)
    }

    pub(super) fn advance(&mut self, nodes: &[Node]) {
        self.hand = nodes[self.hand as usize].next;
    }

    pub(super) fn insert(&mut self, nodes: &mut [Node], slot: u32) {
        let (prev, next) = if self.len == 0 {
            self.hand = slot;
            (slot, slot)
        } else {
            (nodes[self.hand as usize].prev, self.hand)
        };
        nodes[prev as usize].next = slot;
        nodes[next as usize].prev = slot;
        let node = &mut nodes[slot as usize];
        (node.prev, node.next) = (prev, next);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, nodes: &mut [Node], slot: u32) {
        let Node { prev, next, .. } = nodes[slot as usize];
        nodes[prev as usize].next = next;
        nodes[next as usize].prev = prev;
        if self.hand == slot {
            self.hand = next;
        }
        self.len -= 1;
    }

    /// Its slots from the hand on. Checks that they form a circle in both directions.
    #[cfg(all(test, not(loom)))]
    pub(super) fn slots(&self, nodes: &[Node]) -> Vec<u32> {
        let mut at = self.hand;
        let mut step = || {
            let (slot, next) = (at, nodes[at as usize].next);
            assert_eq!(nodes[next as usize].prev, slot, "both ends of one link");
            at = next;
            slot
        };
        let slots: Vec<u32> = (0..self.len).map(|_| step()).collect();
        assert!(self.len == 0 || at == self.hand, "as many as it counts");
        slots
    }
}
