//! Bytes of an object: in the server's memory, or received.

use std::fmt;
use std::sync::Arc;

use crate::connection::Link;
use crate::message::Part;
use crate::sys::{JoinedBytes, LeasedBytes, Map, joined_bytes, leased_bytes};

/// A lease, which ends at the server when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    link: Arc<Link>,
    number: u32,
}

impl Lease {
    /// Takes over a lease. `None` for a connection without a map, whose server leases nothing.
    pub(crate) fn new(link: &Arc<Link>, number: u32) -> Option<Arc<Self>> {
        link.map()?;
        if planted!("client-lease-released-early") {
            link.release(number);
        }
        Some(Arc::new(Self {
            link: Arc::clone(link),
            number,
        }))
    }
}

impl AsRef<Map> for Lease {
    fn as_ref(&self) -> &Map {
        self.link.map().expect("checked when the lease was made")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.link.release(self.number);
    }
}

enum Source {
    /// Bytes of one block in the server's memory.
    One(LeasedBytes<Lease>),
    /// Bytes of several blocks.
    Several(Vec<LeasedBytes<Lease>>, Vec<Part>),
    /// Bytes of several blocks, side by side.
    Joined(JoinedBytes<Lease>),
    /// Bytes that were received.
    Received(Vec<u8>),
}

/// Bytes of one version of an object, which never change. They are in the server's memory, uncopied and held there until the view is
/// dropped, or they were received.
///
/// A view survives its server: after `kill -9` its bytes stay as they were.
pub struct View(Source);

impl View {
    pub(crate) fn received(bytes: Vec<u8>) -> Self {
        Self(Source::Received(bytes))
    }

    /// Returns a view of `parts`, which a reply of the server has leased by `lease`. `None` if they are outside its memory.
    pub(crate) fn leased(lease: &Arc<Lease>, parts: &[Part]) -> Option<Self> {
        let leased = parts.iter().map(|part| leased_bytes(lease, part));
        let leased: Vec<LeasedBytes<Lease>> = leased.collect::<Option<_>>()?;
        let source = match <[LeasedBytes<Lease>; 1]>::try_from(leased) {
            Ok([part]) => Source::One(part),
            Err(leased) => Source::Several(leased, parts.to_vec()),
        };
        Some(Self(source))
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments().map(<[u8]>::len).sum()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bytes are in the server's memory.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        !matches!(self.0, Source::Received(_))
    }

    /// The bytes in order: one slice a block.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        (0..self.segment_count()).map(|index| self.segment(index))
    }

    fn segment_count(&self) -> usize {
        match &self.0 {
            Source::One(_) | Source::Joined(_) | Source::Received(_) => 1,
            Source::Several(parts, _) => parts.len(),
        }
    }

    fn segment(&self, index: usize) -> &[u8] {
        match &self.0 {
            Source::One(part) => part.as_ref(),
            Source::Several(parts, _) => parts[index].as_ref(),
            Source::Joined(joined) => joined.as_ref(),
            Source::Received(bytes) => bytes,
        }
    }

    /// The bytes as one slice, if they are in one block or were received; else [`Self::into_contiguous`] makes them so.
    #[must_use]
    pub fn contiguous(&self) -> Option<&[u8]> {
        (self.segment_count() == 1).then(|| self.segment(0))
    }

    /// The same bytes as one slice: blocks of the server's memory are mapped side by side, and stay
    /// so for the next lease of the same. Where that is not possible, they are copied.
    #[must_use]
    pub fn into_contiguous(self) -> Self {
        let Source::Several(leased, parts) = &self.0 else {
            return self;
        };
        let joined = leased
            .first()
            .and_then(|first| joined_bytes(first.lease(), parts));
        match joined {
            Some(joined) => Self(Source::Joined(joined)),
            None => Self::received(self.into_vec()),
        }
    }

    /// Copies the bytes to `target`, which is as long.
    ///
    /// # Panics
    /// If it is not.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.len(), "a target as long as the view");
        let mut rest = target;
        for segment in self.segments() {
            let (head, tail) = rest.split_at_mut(segment.len());
            head.copy_from_slice(segment);
            rest = tail;
        }
    }

    /// Returns a copy of the bytes, which are held no longer at the server.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        if let Source::Received(bytes) = self.0 {
            return bytes;
        }
        let mut bytes = Vec::with_capacity(self.len());
        for segment in self.segments() {
            bytes.extend_from_slice(segment);
        }
        bytes
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("len", &self.len())
            .field("leased", &self.is_leased())
            .finish()
    }
}
