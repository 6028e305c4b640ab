//! Rings of slots, linked through one table of nodes: 16 bytes a slot, and no allocation to enter or leave.

/// What the policy remembers of a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Node {
    prev: u32,
    next: u32,
    /// Of a newcomer: loads from its last use before to its load, 0 if unknown. Of a settled block: the load at which it was
    /// last seen used.
    pub(super) stamp: u32,
    pub(super) place: Place,
    /// Its priority's number.
    pub(super) class: u8,
    /// Uses seen of a settled block, up to `MAX_SCORE`, halved at each look that finds none.
    pub(super) score: u8,
}

impl Node {
    pub(super) fn newcomer(stamp: u32, class: u8) -> Self {
        Self {
            stamp,
            place: Place::Newcomers,
            class,
            ..Self::default()
        }
    }
}

const _: () = assert!(size_of::<Node>() == 16);

/// Which ring a slot is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    #[default]
    Nowhere,
    Newcomers,
    Settled,
}

/// A circle of slots and a hand that goes round it. A slot enters just behind the hand, so the hand comes to it last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ring {
    /// The slot the hand is at; means nothing in an empty ring.
    hand: u32,
    len: u32,
}

impl Ring {
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The slot the hand is at.
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

    /// Its slots from the hand on; checks that they are a circle both ways.
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
