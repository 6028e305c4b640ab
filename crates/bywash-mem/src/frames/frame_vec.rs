//! Vectors of fixed capacity that share a frame, or lie on the heap.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use super::frame::Frame;

/// A frame that is handed out in parts, one after the other. The last part that is dropped returns it to the pool: for vectors
/// that end at about the same time.
#[derive(Debug)]
pub struct SharedFrame {
    frame: Arc<Frame>,
    /// Bytes handed out.
    used: usize,
}

impl SharedFrame {
    /// Shares a frame.
    #[must_use]
    pub fn new(frame: Frame) -> Self {
        // A new frame of many pages faults less often if it is populated at once.
        frame.populate(frame.capacity());
        Self {
            frame: Arc::new(frame),
            used: 0,
        }
    }

    /// Returns an empty vector in the next bytes of the frame; `None` if they are too few.
    #[must_use]
    pub fn vec<T: Copy>(&mut self, capacity: usize) -> Option<FrameVec<T>> {
        const { assert!(size_of::<T>() > 0 && align_of::<T>() <= super::MIN_FRAME) };
        let start = self.used.next_multiple_of(align_of::<T>());
        let end = start.checked_add(capacity.checked_mul(size_of::<T>())?)?;
        if end > self.frame.capacity() {
            return None;
        }
        self.used = end;
        // SAFETY: `start` is within the frame, or at its end if the capacity is 0.
        let first = unsafe { self.frame.start().add(start) };
        Some(FrameVec {
            start: first.cast(),
            len: 0,
            capacity: u32::try_from(capacity).ok()?,
            frame: Some(Arc::clone(&self.frame)),
        })
    }
}

/// A vector whose memory is a part of a [`SharedFrame`], or of the heap. It grows on the heap only, by [`Self::reserve_exact`].
pub struct FrameVec<T: Copy> {
    start: NonNull<T>,
    len: u32,
    capacity: u32,
    /// The frame that has the elements; `None`: the heap.
    frame: Option<Arc<Frame>>,
}

// SAFETY: it owns its elements as a `Vec` does: no other vector has its part of the frame, and the frame itself can be sent.
unsafe impl<T: Copy + Send> Send for FrameVec<T> {}
// SAFETY: as above; `&FrameVec` only reads.
unsafe impl<T: Copy + Sync> Sync for FrameVec<T> {}

impl<T: Copy> FrameVec<T> {
    /// Returns an empty vector without memory.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(size_of::<T>() > 0) };
        Self {
            start: NonNull::dangling(),
            len: 0,
            capacity: 0,
            frame: None,
        }
    }

    /// Returns an empty vector on the heap.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut vec = Self::new();
        vec.reserve_exact(capacity);
        vec
    }

    /// Number of elements there is room for.
    #[inline]
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Returns whether the elements lie in a frame.
    #[must_use]
    pub const fn is_in_frame(&self) -> bool {
        self.frame.is_some()
    }

    /// Makes room for exactly `additional` more elements. Elements of a frame move to the heap.
    ///
    /// # Panics
    /// If the capacity exceeds `u32::MAX`.
    pub fn reserve_exact(&mut self, additional: usize) {
        let len = self.len();
        if self.capacity() - len >= additional {
            return;
        }
        let mut heap = std::mem::take(self).into_vec();
        heap.reserve_exact(additional);
        *self = heap.into();
    }

    /// Appends an element. There must be room.
    ///
    /// # Panics
    /// If the vector is full.
    #[inline]
    pub fn push(&mut self, value: T) {
        assert!(self.len < self.capacity, "a full vector");
        // SAFETY: there is room.
        unsafe { self.push_unchecked(value) };
    }

    /// Appends elements, as many as there is room for.
    #[inline]
    pub fn extend_within_capacity(&mut self, values: impl Iterator<Item = T>) {
        for value in values.take((self.capacity - self.len) as usize) {
            // SAFETY: there is room for as many as were taken.
            unsafe { self.push_unchecked(value) };
        }
    }

    /// Appends an element.
    ///
    /// # Safety
    /// The vector is not full.
    #[inline]
    unsafe fn push_unchecked(&mut self, value: T) {
        // SAFETY: below the capacity, so within the memory that this vector owns.
        let end = unsafe { self.start.add(self.len as usize) };
        // SAFETY: as above, and aligned.
        unsafe { end.write(value) };
        self.len += 1;
    }

    /// Inserts an element before the one at `at`. There must be room.
    ///
    /// # Panics
    /// If the vector is full, or `at` is beyond its end.
    pub fn insert(&mut self, at: usize, value: T) {
        assert!(at <= self.len(), "a position within the vector");
        self.push(value);
        self[at..].rotate_right(1);
    }

    /// Keeps the first `len` elements.
    pub fn truncate(&mut self, len: usize) {
        // Not larger than the length, which fits.
        self.len = self.len().min(len) as u32;
    }

    /// Returns the elements in a plain vector. Copies them only from a frame.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<T> {
        match self.frame {
            Some(_) => self.to_vec(),
            None => self.take_heap(),
        }
    }

    /// Takes the elements of the heap out. Leaves an empty vector.
    fn take_heap(&mut self) -> Vec<T> {
        debug_assert!(self.frame.is_none(), "elements on the heap");
        let taken = std::mem::take(self);
        let taken = ManuallyDrop::new(taken);
        // SAFETY: the parts of a `Vec` as `From<Vec>` got them, or of an empty one; `taken` does not free them.
        unsafe {
            Vec::from_raw_parts(
                taken.start.as_ptr(),
                taken.len as usize,
                taken.capacity as usize,
            )
        }
    }
}

impl<T: Copy> Drop for FrameVec<T> {
    fn drop(&mut self) {
        if self.frame.is_none() && self.capacity > 0 {
            drop(self.take_heap());
        }
    }
}

impl<T: Copy> Default for FrameVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> From<Vec<T>> for FrameVec<T> {
    /// Takes over the memory of the vector.
    ///
    /// # Panics
    /// If its capacity exceeds `u32::MAX`.
    fn from(vec: Vec<T>) -> Self {
        const { assert!(size_of::<T>() > 0) };
        let mut vec = ManuallyDrop::new(vec);
        let capacity = u32::try_from(vec.capacity()).expect("at most u32::MAX elements");
        Self {
            start: NonNull::new(vec.as_mut_ptr()).expect("no vector is at null"),
            // Not above the capacity.
            len: vec.len() as u32,
            capacity,
            frame: None,
        }
    }
}

impl<T: Copy> Clone for FrameVec<T> {
    /// Copies the elements to the heap.
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl<T: Copy> Deref for FrameVec<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements are written, and `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }
}

impl<T: Copy> DerefMut for FrameVec<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for FrameVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
