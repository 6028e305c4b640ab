//! The map of the server's memory, and the count of forks: the one file of this crate with `unsafe`.
#![allow(
    unsafe_code,
    reason = "a read-only map, and handlers that the C library calls at a fork; each block states why it is sound"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::message::Part;
use crate::view::Lease;

/// Bytes of a page of the map.
const PAGE: usize = 4096;
/// Length from which the pages of a lease are mapped by one call: fewer are mapped by faults at the same price.
const POPULATE: usize = 64 << 10;

/// The server's shared memory, mapped for reading. Stays mapped while a view of it lives, also after the server has ended.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    memory: OwnedFd,
}

// SAFETY: the map is an address range, which any thread may read and unmap.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` only reads.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes of the server's memory.
    ///
    /// # Errors
    /// The system's, as when an address space of this size is not allowed (`ulimit -v`).
    pub(crate) fn new(memory: OwnedFd, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces nothing. The descriptor is sealed against
        // shrinking, so no page of the map vanishes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                flags,
                &memory,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len, memory })
    }

    /// Returns the address of a part. `None` if it is outside the map.
    fn part(&self, offset: u64, len: u64) -> Option<NonNull<[u8]>> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the map, as just checked.
        let first = unsafe { self.start.add(offset) };
        Some(NonNull::slice_from_raw_parts(first, len))
    }

    /// Maps the pages of a part by one call instead of a fault each. Without effect on older kernels.
    pub(crate) fn populate(&self, offset: u64, len: u64) {
        let (offset, len) = (offset as usize, len as usize);
        let end = offset.saturating_add(len);
        if len < POPULATE || end > self.len {
            return;
        }
        let first = offset / PAGE * PAGE;
        let address = self.start.as_ptr().wrapping_add(first).cast();
        // SAFETY: reads pages within the map, and changes no byte.
        let _ = unsafe { madvise(address, end - first, Advice::LinuxPopulateRead) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and no view is left: each holds a reference to this map.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Bytes of the map that the server has leased to this process. Holds its lease, which ends with the last of its parts.
#[derive(Debug, Clone)]
pub(crate) struct LeasedBytes<L> {
    bytes: NonNull<[u8]>,
    lease: Arc<L>,
}

// SAFETY: bytes that no thread writes while the lease is held, which these values share.
unsafe impl<L: Send + Sync> Send for LeasedBytes<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for LeasedBytes<L> {}

impl<L: AsRef<Map>> LeasedBytes<L> {
    /// Takes a part of a lease. `None` if it is outside the map.
    ///
    /// # Safety
    /// The server has leased the part by `lease`, and nothing ends the lease before that value is dropped.
    pub(crate) unsafe fn new(lease: &Arc<L>, offset: u64, len: u64) -> Option<Self> {
        Some(Self {
            bytes: (**lease).as_ref().part(offset, len)?,
            lease: Arc::clone(lease),
        })
    }
}

impl<L> LeasedBytes<L> {
    /// The lease that keeps the bytes.
    pub(crate) fn lease(&self) -> &Arc<L> {
        &self.lease
    }
}

impl<L> AsRef<[u8]> for LeasedBytes<L> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: mapped, initialised memory. The server does not write a frame while a lease of it is held, as its pool's models
        // show, and the lease holds the map.
        unsafe { self.bytes.as_ref() }
    }
}

/// Parts of a lease mapped side by side, so that they are one slice.
#[derive(Debug)]
pub(crate) struct JoinedBytes<L> {
    /// Pages of the parts.
    pages: NonNull<u8>,
    pages_len: usize,
    bytes: NonNull<[u8]>,
    _lease: Arc<L>,
}

// SAFETY: as for `LeasedBytes`; the mapping is this value's own.
unsafe impl<L: Send + Sync> Send for JoinedBytes<L> {}
// SAFETY: as above.
unsafe impl<L: Send + Sync> Sync for JoinedBytes<L> {}

impl<L: AsRef<Map>> JoinedBytes<L> {
    /// Maps parts side by side. `None` if an inner border is not one of pages, or the system allows no more maps.
    ///
    /// # Safety
    /// As for [`LeasedBytes::new`].
    unsafe fn new(lease: &Arc<L>, parts: &[Part]) -> Option<Self> {
        let map = (**lease).as_ref();
        let (first, last) = (parts.first()?, parts.last()?);
        let inside = |part: &Part| {
            part.offset
                .checked_add(part.len)
                .is_some_and(|end| end <= map.len as u64)
        };
        let skip = (first.offset % PAGE as u64) as usize;
        let aligned = |offset: u64| offset.is_multiple_of(PAGE as u64);
        let starts = parts[1..].iter().all(|part| aligned(part.offset));
        let ends = parts[..parts.len() - 1]
            .iter()
            .all(|part| aligned(part.offset + part.len));
        if !parts.iter().all(inside) || !starts || !ends {
            return None;
        }
        let len: u64 = parts.iter().map(|part| part.len).sum();
        let len = usize::try_from(len).ok()?;
        let pages_len = (skip + len).next_multiple_of(PAGE);
        let reserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses replaces nothing.
        let pages = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                pages_len,
                ProtFlags::empty(),
                reserved,
            )
        };
        let pages = NonNull::new(pages.ok()?.cast::<u8>())?;
        let joined = Self {
            pages,
            pages_len,
            // SAFETY: within the pages reserved above.
            bytes: NonNull::slice_from_raw_parts(unsafe { pages.add(skip) }, len),
            _lease: Arc::clone(lease),
        };
        let mut at = 0;
        for part in parts {
            let before = part.offset % PAGE as u64;
            let bytes = (before + part.len).next_multiple_of(PAGE as u64) as usize;
            // A part's pages are within the map, whose length is one of pages.
            let address = pages.as_ptr().wrapping_add(at).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let (memory, offset) = (&map.memory, part.offset - before);
            // SAFETY: replaces pages of the range reserved above, which nothing refers to yet.
            unsafe { mmap(address, bytes, ProtFlags::READ, flags, memory, offset) }.ok()?;
            at += bytes;
        }
        debug_assert_eq!((at, last.len > 0), (pages_len, true));
        Some(joined)
    }
}

impl<L> AsRef<[u8]> for JoinedBytes<L> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `LeasedBytes`: the same pages at another address.
        unsafe { self.bytes.as_ref() }
    }
}

impl<L> Drop for JoinedBytes<L> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; `&mut self` shows that no slice of it is left.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.pages_len) };
    }
}

/// Maps parts that the server has leased side by side.
pub(crate) fn joined_bytes(lease: &Arc<Lease>, parts: &[Part]) -> Option<JoinedBytes<Lease>> {
    // SAFETY: as in `leased_bytes`.
    unsafe { JoinedBytes::new(lease, parts) }
}

/// Number of forks that this process or its ancestors made since this library was first used. Written by the handlers of a fork, in
/// the forking thread of the parent and in the only thread of the child; read by all calls. Orders nothing, hence relaxed.
static FORKS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Relaxed);
}

/// Has forks counted from now on. Takes no lock: a fork of another thread during the call leaves nothing locked in the child.
pub(crate) fn count_forks() {
    /// Whether the handlers are registered. Written and read here only; orders nothing, hence relaxed.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    if !REGISTERED.swap(true, Relaxed) {
        // SAFETY: the handlers only add to an atomic, which is allowed in a child at once after its fork. If memory for the
        // registration is missing, the process id still tells a child from its parent.
        unsafe { pthread_atfork(None, Some(forked), Some(forked)) };
    }
}

/// Returns a value that changes with each fork, in the parent and in the child. The process id covers a child whose handlers did not
/// run, as of a bare `clone` call.
pub(crate) fn fork_generation() -> Generation {
    Generation {
        forks: FORKS.load(Relaxed),
        process: std::process::id(),
    }
}

/// The time between two forks in one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation {
    forks: u64,
    process: u32,
}

/// Returns the bytes of a part that the server has just leased.
pub(crate) fn leased_bytes(lease: &Arc<Lease>, part: &Part) -> Option<LeasedBytes<Lease>> {
    lease.as_ref().as_ref().populate(part.offset, part.len);
    // SAFETY: parts come from the reply that names the lease, and only the drop of `Lease` releases it.
    unsafe { LeasedBytes::new(lease, part.offset, part.len) }
}
