//! The map of the server's memory, and the count of forks: the one file of this crate with `unsafe`.
#![allow(
    unsafe_code,
    reason = "a read-only map, and handlers that the C library calls at a fork; each block states why it is sound"
)]

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::limits::MAX_KEPT_PARTS;
use crate::message::Part;
use crate::view::Lease;

/// Bytes of a page of the map.
const PAGE: usize = 4096;

/// The server's shared memory, mapped for reading. Stays mapped while a view of it lives, also after the server has ended.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    memory: OwnedFd,
    /// Parts of earlier leases, mapped side by side, the latest last: an object that is read again is at the same place. Never waited
    /// for, as in the child of a fork a lock that another thread held stays locked.
    kept: Mutex<Vec<Arc<Joined>>>,
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
        Ok(Self {
            start,
            len,
            memory,
            kept: Mutex::default(),
        })
    }

    /// Address of a part. `None` if it is outside the map.
    fn part(&self, offset: u64, len: u64) -> Option<NonNull<[u8]>> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the map, as just checked.
        let first = unsafe { self.start.add(offset) };
        Some(NonNull::slice_from_raw_parts(first, len))
    }

    /// Maps parts side by side, or returns the kept map of the same parts. `None` as [`Joined::new`].
    fn joined(&self, parts: &[Part]) -> Option<Arc<Joined>> {
        let Ok(mut kept) = self.kept.try_lock() else {
            return Joined::new(self, parts).map(Arc::new);
        };
        let joined = match kept.iter().position(|joined| joined.parts == parts) {
            Some(at) => kept.remove(at),
            None => Arc::new(Joined::new(self, parts)?),
        };
        let mut count = parts.len();
        let fits = kept.iter().rev().take_while(|joined| {
            count += joined.parts.len();
            count <= MAX_KEPT_PARTS
        });
        let surplus = kept.len() - fits.count();
        kept.drain(..surplus);
        if parts.len() <= MAX_KEPT_PARTS {
            kept.push(Arc::clone(&joined));
        }
        Some(joined)
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

/// Parts of the server's memory mapped side by side. The map does not keep the bytes: a reader must hold their lease.
#[derive(Debug)]
struct Joined {
    parts: Vec<Part>,
    pages: NonNull<u8>,
    pages_len: usize,
}

// SAFETY: as for `Map`.
unsafe impl Send for Joined {}
// SAFETY: as above.
unsafe impl Sync for Joined {}

impl Joined {
    /// Maps parts side by side. `None` if one is outside `map`, an inner border is not one of pages, or the system allows no more maps.
    fn new(map: &Map, parts: &[Part]) -> Option<Self> {
        let inside = |part: &Part| {
            let end = part.offset.checked_add(part.len);
            end.is_some_and(|end| end <= map.len as u64)
        };
        let aligned = |offset: u64| offset.is_multiple_of(PAGE as u64);
        let (first, later) = parts.split_first()?;
        let (_, earlier) = parts.split_last()?;
        let starts = later.iter().all(|part| aligned(part.offset));
        let ends = earlier.iter().all(|part| aligned(part.offset + part.len));
        if !parts.iter().all(inside) || !starts || !ends {
            return None;
        }
        let len: u64 = parts.iter().map(|part| part.len).sum();
        let len = usize::try_from(first.offset % PAGE as u64 + len).ok()?;
        let pages_len = len.next_multiple_of(PAGE);
        let reserved = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (anywhere, unused) = (std::ptr::null_mut(), ProtFlags::empty());
        // SAFETY: a new mapping at an address that the system chooses replaces nothing.
        let pages = unsafe { mmap_anonymous(anywhere, pages_len, unused, reserved) };
        let joined = Self {
            parts: parts.to_vec(),
            pages: NonNull::new(pages.ok()?.cast::<u8>())?,
            pages_len,
        };
        let mut at = 0;
        for part in parts {
            let before = part.offset % PAGE as u64;
            let bytes = (before + part.len).next_multiple_of(PAGE as u64) as usize;
            // A part's pages are within the map, whose length is one of pages.
            let address = joined.pages.as_ptr().wrapping_add(at).cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let (memory, offset) = (&map.memory, part.offset - before);
            // SAFETY: replaces pages of the range reserved above, which nothing refers to yet.
            unsafe { mmap(address, bytes, ProtFlags::READ, flags, memory, offset) }.ok()?;
            at += bytes;
        }
        debug_assert_eq!(at, pages_len);
        Some(joined)
    }

    /// The parts as one slice.
    fn bytes(&self) -> NonNull<[u8]> {
        let skip = (self.parts[0].offset % PAGE as u64) as usize;
        let len: u64 = self.parts.iter().map(|part| part.len).sum();
        // SAFETY: within the pages, whose length was computed from the same parts.
        let first = unsafe { self.pages.add(skip) };
        NonNull::slice_from_raw_parts(first, len as usize)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; no slice of it is left, as each holds a reference to this map.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.pages_len) };
    }
}

/// Parts of a lease mapped side by side, so that they are one slice.
#[derive(Debug)]
pub(crate) struct JoinedBytes<L> {
    joined: Arc<Joined>,
    _lease: Arc<L>,
}

impl<L> AsRef<[u8]> for JoinedBytes<L> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `LeasedBytes`: the same pages at another address.
        unsafe { self.joined.bytes().as_ref() }
    }
}

/// Maps parts that the server has leased side by side. `None` as [`Joined::new`].
pub(crate) fn joined_bytes(lease: &Arc<Lease>, parts: &[Part]) -> Option<JoinedBytes<Lease>> {
    Some(JoinedBytes {
        joined: (**lease).as_ref().joined(parts)?,
        _lease: Arc::clone(lease),
    })
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

/// Bytes of a part that the server has just leased.
pub(crate) fn leased_bytes(lease: &Arc<Lease>, part: &Part) -> Option<LeasedBytes<Lease>> {
    // SAFETY: parts come from the reply that names the lease, and only the drop of `Lease` releases it.
    unsafe { LeasedBytes::new(lease, part.offset, part.len) }
}
