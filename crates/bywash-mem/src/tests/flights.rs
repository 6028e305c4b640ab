//! Flights: waiters, readers, and the ways a load ends.

use std::sync::Arc;
use std::thread;

use super::{MIB, begin, block_on, key, load, pool, vacant};
use crate::{BlockSlice, Claim, Flight, FlightError, Frame, LoadError, Share};

fn error(text: &'static str) -> LoadError {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

fn read_all(flight: &Arc<Flight>, offset: usize, max: usize) -> Result<Vec<u8>, FlightError> {
    let mut reader = flight.reader(offset);
    let mut all = Vec::new();
    while let Some(bytes) = block_on(reader.next(max))? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

#[test]
fn concurrent_waiters_share_one_load() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 4);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let Claim::Loading(flight) = pool.claim(key(1)) else {
                    panic!("it is being loaded")
                };
                let waiter = flight.join();
                scope.spawn(move || block_on(waiter.wait()))
            })
            .collect();
        load.write(b"once");
        drop(load.publish().unwrap());
        for waiter in waiters {
            assert_eq!(&waiter.join().unwrap().unwrap()[..], b"once");
        }
    });
    assert_eq!((pool.stats().loads, pool.stats().flights), (1, 0));
    assert!(matches!(pool.claim(key(1)), Claim::Resident(_)));
}

#[test]
fn is_loading_reports_a_load_without_starting_one() {
    let pool = pool(MIB);
    assert!(!pool.is_loading(key(1)));
    assert_eq!((pool.stats().loads, pool.stats().flights), (0, 0));
    let mut loading = begin(&pool, key(1), 1);
    assert!(pool.is_loading(key(1)) && !pool.contains(key(1)));
    loading.write(b"x");
    drop(loading.publish().unwrap());
    assert!(!pool.is_loading(key(1)) && pool.contains(key(1)));
    let loading = begin(&pool, key(2), 1);
    pool.erase(key(2));
    assert!(!pool.is_loading(key(2)), "an erased load is not kept");
    drop(loading);
    assert_eq!(pool.stats().loads, 2);
}

#[test]
fn waiter_owns_its_pin_before_it_wakes() {
    let pool = pool(16 * 4096);
    let mut load = begin(&pool, key(1), 1);
    let waiter = load.flight().join();
    let dropped = load.flight().join();
    let gone = load.flight().join();
    drop(gone);
    load.write(b"x");
    drop(load.publish().unwrap());
    let others = pool.try_frames(Share::Download, 4096, 1, 100).unwrap();
    assert_eq!(others.len(), 11, "the block is pinned for its waiters");
    drop(dropped);
    assert!(pool.try_frames(Share::Download, 4096, 1, 1).is_none());
    drop(block_on(waiter.wait()).unwrap());
    assert_eq!(
        pool.try_frames(Share::Download, 4096, 1, 1).unwrap().len(),
        1,
        "and now it is unpinned"
    );
}

/// A frame with these bytes first.
fn filled(pool: &Arc<crate::BlockPool>, len: usize, bytes: &[u8]) -> Frame {
    let frames = pool.try_frames(Share::Download, len, 1, 1).unwrap();
    let mut frame = frames.into_iter().next().unwrap();
    frame.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn filled_frame_takes_the_place_of_the_attached_one() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 4);
    let waiter = load.flight().join();
    let frame = filled(&pool, 4, b"full");
    let start = frame.as_slice().as_ptr();
    let spare = load.fill(frame).unwrap();
    assert_eq!((load.remaining(), spare.capacity()), (0, 4096));
    assert_ne!(spare.as_slice().as_ptr(), start);
    let pin = load.publish().unwrap();
    assert_eq!((&pin[..], pin.as_ptr()), (&b"full"[..], start), "no copy");
    assert_eq!(&block_on(waiter.wait()).unwrap()[..], b"full");
    drop(spare);
    assert_eq!(pool.budget().held(Share::Download), 4096);
}

#[test]
fn readers_move_to_the_filled_frame() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 4);
    let flight = load.flight();
    let (mut waiting, mut late) = (flight.reader(0), flight.reader(2));
    let mut first = Box::pin(waiting.next(9));
    assert!(block_on(async { futures::poll!(&mut first) }).is_pending());
    let spare = load.fill(filled(&pool, 4, b"read"));
    assert!(spare.is_some(), "no reader holds it");
    assert_eq!(&block_on(first).unwrap().unwrap()[..], b"read");
    drop(load.publish().unwrap());
    assert_eq!(&block_on(late.next(9)).unwrap().unwrap()[..], b"ad");
    for mut reader in [waiting, late] {
        assert!(block_on(reader.next(9)).unwrap().is_none());
    }
}

#[test]
fn frame_of_another_size_is_copied_from() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 4);
    let spare = load.fill(filled(&pool, 9000, b"size")).unwrap();
    assert!(spare.capacity() > 4096);
    assert_eq!(&load.publish().unwrap()[..], b"size");
}

#[test]
fn joining_after_publication_finds_the_block_or_fails_as_abandoned() {
    let pool = pool(MIB);
    let mut first = begin(&pool, key(1), 1);
    let flight = first.flight();
    first.write(b"x");
    drop(first.publish().unwrap());
    assert_eq!(&block_on(flight.join().wait()).unwrap()[..], b"x");
    assert!(matches!(
        block_on(flight.reader(0).next(1)),
        Err(FlightError::Abandoned)
    ));
    pool.erase(key(1));
    drop(load(&pool, key(2), b"y"));
    assert!(
        matches!(block_on(flight.join().wait()), Err(FlightError::Abandoned)),
        "another block has the slot now"
    );
}

#[test]
fn failed_load_fails_its_waiters_only() {
    let pool = pool(MIB);
    let load = begin(&pool, key(1), 1);
    let (waiter, flight) = (load.flight().join(), load.flight());
    load.fail(error("no such thing"));
    let Err(FlightError::Failed(shared)) = block_on(waiter.wait()) else {
        panic!("failed")
    };
    assert_eq!(shared.to_string(), "no such thing");
    assert!(matches!(
        block_on(flight.join().wait()),
        Err(FlightError::Failed(_))
    ));
    assert_eq!(pool.budget().held(Share::Download), 0);
    drop(super::load(&pool, key(1), b"z"));
}

#[test]
fn abandoned_load_is_taken_over() {
    let pool = pool(MIB);
    let load = begin(&pool, key(1), 1);
    let waiter = load.flight().join();
    drop(load);
    assert!(matches!(
        block_on(waiter.wait()),
        Err(FlightError::Abandoned)
    ));
    assert_eq!(
        (pool.stats().flights, pool.budget().held(Share::Download)),
        (0, 0)
    );

    let load = vacant(&pool, key(1));
    let waiter = load.flight().join();
    let leader = thread::spawn(move || {
        let _load = load;
        panic!("a leader that panics (this is a test)");
    });
    assert!(leader.join().is_err());
    assert!(matches!(
        block_on(waiter.wait()),
        Err(FlightError::Abandoned)
    ));
    assert!(matches!(pool.claim(key(1)), Claim::Vacant(_)));
}

#[test]
fn readers_read_arriving_bytes_and_end_with_publication() {
    let pool = pool(MIB);
    let mut load = vacant(&pool, key(1));
    let flight = load.flight();
    let early = thread::spawn({
        let flight = Arc::clone(&flight);
        move || read_all(&flight, 2, 3)
    });
    load.attach(
        pool.try_frames(Share::Download, 10, 1, 1)
            .unwrap()
            .remove(0),
        10,
    );
    let mut reader = flight.reader(0);
    load.write(b"0123");
    let first = block_on(reader.next(3)).unwrap().unwrap();
    assert_eq!(&first[..], b"012");
    let task = thread::spawn({
        let flight = Arc::clone(&flight);
        move || {
            let mut reader = flight.reader(9);
            block_on(async {
                (
                    reader.next(99).await,
                    reader.next(99).await.map(|end| end.is_none()),
                )
            })
        }
    });
    load.write(b"456789");
    drop(load.publish().unwrap());
    assert_eq!(early.join().unwrap().unwrap(), b"23456789");
    let (last, ended) = task.join().unwrap();
    assert_eq!(&last.unwrap().unwrap()[..], b"9");
    assert!(ended.unwrap());
    assert_eq!(&block_on(reader.next(99)).unwrap().unwrap()[..], b"3456789");
    assert!(block_on(reader.next(99)).unwrap().is_none());

    // The block and the readers' slices share the frame: it is released with the last one.
    assert!(pool.erase(key(1)));
    assert_eq!(
        (&first[..], pool.budget().held(Share::Download)),
        (&b"012"[..], 4096)
    );
    drop(first);
    assert_eq!(pool.budget().held(Share::Download), 4096);
    drop(reader);
    assert_eq!(
        (pool.budget().held(Share::Download), pool.budget().idle()),
        (0, 4096)
    );
}

#[test]
fn reader_first_polled_after_publication_reads_everything() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 2);
    let mut reader = load.flight().reader(0);
    load.write(b"ab");
    drop(load.publish().unwrap());
    assert_eq!(&block_on(reader.next(9)).unwrap().unwrap()[..], b"ab");
    assert!(block_on(reader.next(9)).unwrap().is_none());
}

#[test]
fn failed_load_ends_readers_and_keeps_their_slices() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 10);
    let mut reader = load.flight().reader(0);
    let mut behind = load.flight().reader(0);
    load.write(b"01234");
    let held: BlockSlice = block_on(reader.next(5)).unwrap().unwrap();
    load.fail(error("broken"));
    assert!(matches!(
        block_on(reader.next(1)),
        Err(FlightError::Failed(_))
    ));
    assert!(
        matches!(block_on(behind.next(1)), Err(FlightError::Failed(_))),
        "unread bytes are not returned after a failure"
    );
    drop((reader, behind));
    assert_eq!(
        (&held[..], pool.budget().held(Share::Download)),
        (&b"01234"[..], 4096)
    );
    let other = super::load(&pool, key(1), b"again");
    assert_eq!(&bytes::Bytes::from_owner(held)[..], b"01234");
    assert_eq!(
        (&other[..], pool.budget().held(Share::Download)),
        (&b"again"[..], 4096)
    );
}

#[test]
fn block_without_readers_owns_its_frame() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 2);
    let mut reader = load.flight().reader(0);
    load.write(b"ab");
    drop(block_on(reader.next(2)).unwrap());
    drop(reader);
    drop(load.publish().unwrap());
    pool.erase(key(1));
    assert_eq!(pool.budget().held(Share::Download), 0);
}

#[test]
fn attaching_an_upload_frame_moves_its_charge_to_downloads() {
    let pool = pool(MIB);
    let mut load = vacant(&pool, key(1));
    load.attach(
        pool.try_frames(Share::Upload, 4, 1, 1).unwrap().remove(0),
        4,
    );
    assert_eq!(
        (
            pool.budget().held(Share::Upload),
            pool.budget().held(Share::Download)
        ),
        (0, 4096)
    );
    load.write(b"data");
    drop(load.publish().unwrap());
}

#[test]
fn public_types_are_send_and_sync() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    sent::<crate::Load>();
    sent::<crate::FrameWait>();
    sent::<crate::Waiter>();
    sent::<crate::BlockReader>();
    shared::<crate::OwnedPin>();
    shared::<crate::BlockSlice>();
    shared::<crate::Frame>();
    shared::<crate::BlockPool>();
    shared::<crate::Reservation>();
    shared::<crate::Pin<'static>>();
    drop(load(&pool(MIB), key(1), b"x"));
}
