//! Frames in memory that other processes can map.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{MIB, key, load};
use crate::{BlockPool, PoolConfig, Share};

fn shared_pool(limit: u64) -> Arc<BlockPool> {
    BlockPool::new(PoolConfig {
        shared: true,
        ..PoolConfig::new(limit)
    })
    .unwrap()
}

/// The memory as another process sees it.
fn memory_of(pool: &BlockPool) -> File {
    let memory = pool.shared_memory().unwrap();
    File::from(memory.descriptor.try_clone_to_owned().unwrap())
}

fn bytes_at(memory: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn pinned_block_is_at_its_offset() {
    let pool = shared_pool(16 * MIB);
    let memory = memory_of(&pool);
    for (object, len) in [(1, 1), (2, 5000), (3, 1 << 20)] {
        let bytes: Vec<u8> = (0..len).map(|at: usize| (at * 7 + len) as u8).collect();
        let pin = load(&pool, key(object), &bytes);
        let offset = pin.shared_offset().unwrap();
        assert!(offset + len as u64 <= pool.shared_memory().unwrap().len);
        assert!(bytes_at(&memory, offset, len) == bytes, "block of {len}");
    }
}

#[test]
fn frames_in_huge_pages_are_not_shared() {
    let pool = shared_pool(16 * MIB);
    let pin = load(&pool, key(1), &vec![1; 2 << 20]);
    assert_eq!(pin.shared_offset(), None);
}

#[test]
fn pool_without_shared_memory_has_no_offsets() {
    let pool = super::pool(MIB);
    assert!(pool.shared_memory().is_none());
    assert_eq!(load(&pool, key(1), b"x").shared_offset(), None);
}

#[test]
fn decommitted_frame_is_a_hole() {
    let pool = shared_pool(16 * MIB);
    let memory = memory_of(&pool);
    let pin = load(&pool, key(1), &vec![0xA5; 1 << 20]);
    let offset = pin.shared_offset().unwrap();
    let allocated = || rustix::fs::fstat(&memory).unwrap().st_blocks * 512;
    assert!(allocated() >= 1 << 20);
    drop(pin);
    assert!(pool.erase(key(1)));
    pool.decommit_idle(u64::MAX);
    assert_eq!(pool.budget().used(), 0);
    assert_eq!(allocated(), 0, "no page is left");
    assert!(bytes_at(&memory, offset, 4096) == [0; 4096]);
}

#[test]
fn leased_bytes_stay_while_the_memory_is_turned_over() {
    let pool = shared_pool(4 * MIB);
    let memory = memory_of(&pool);
    let pin = load(&pool, key(1), &vec![0x5A; 256 << 10]);
    let offset = pin.shared_offset().unwrap();
    for object in 2..100 {
        drop(load(&pool, key(object), &vec![object as u8; 256 << 10]));
        if object % 10 == 0 {
            pool.decommit_idle(u64::MAX);
        }
    }
    assert!(bytes_at(&memory, offset, 256 << 10) == vec![0x5A; 256 << 10]);
    drop(pin);
}

#[test]
fn descriptor_for_other_processes_can_neither_write_nor_resize() {
    let pool = shared_pool(16 * MIB);
    let memory = memory_of(&pool);
    assert!(memory.write_at(b"x", 0).is_err());
    assert!(memory.set_len(0).is_err());
    let fd = pool.shared_memory().unwrap().descriptor;
    // A description of its own for writing: the seals hold for it too.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let opened = File::options().write(true).open(path).unwrap();
    assert!(opened.set_len(0).is_err(), "sealed against shrinking");
    assert!(opened.set_len(1 << 40).is_err(), "sealed against growing");
    let flags = rustix::io::fcntl_getfd(fd.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn memory_of_all_classes_stays_below_the_limit() {
    let pool = shared_pool(4 * MIB);
    let memory = memory_of(&pool);
    let mut held = Vec::new();
    for round in 0..200 {
        let len = 4096 << (round % 9);
        if let Some(mut frames) = pool.try_frames(Share::Download, len, 1, 1) {
            frames[0].as_mut_slice().fill(1);
            held.extend(frames);
        }
        if held.len() > 6 {
            held.remove(round % held.len());
        }
        let allocated = rustix::fs::fstat(&memory).unwrap().st_blocks as u64 * 512;
        assert!(allocated <= pool.budget().used(), "{allocated} committed");
    }
}
