//! Flights: waiters, followers, and the ways a load ends.

use std::sync::Arc;
use std::thread;

use super::{MIB, begin, key, load, pool, vacant};
use crate::{Claim, Flight, FlightError, Followed, LoadError, Share};

fn error(text: &'static str) -> LoadError {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

fn read_all(flight: &Arc<Flight>, offset: usize, max: usize) -> Result<Vec<u8>, FlightError> {
    let mut follower = flight.follow(offset);
    let mut all = Vec::new();
    while let Some(bytes) = follower.next_blocking(max)? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

#[test]
fn one_load_however_many_ask() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 4);
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|i| {
                let Claim::Loading(flight) = pool.claim(key(1)) else {
                    panic!("it is being loaded")
                };
                let waiter = flight.join();
                scope.spawn(move || {
                    if i % 2 == 0 {
                        waiter.wait_blocking()
                    } else {
                        futures::executor::block_on(waiter.wait())
                    }
                })
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
fn a_waiter_owns_its_pin_before_it_wakes() {
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
    drop(waiter.wait_blocking().unwrap());
    assert_eq!(
        pool.try_frames(Share::Download, 4096, 1, 1).unwrap().len(),
        1,
        "and now by nobody"
    );
}

#[test]
fn joining_late_finds_the_block_or_is_told_to_look_again() {
    let pool = pool(MIB);
    let mut first = begin(&pool, key(1), 1);
    let flight = first.flight();
    first.write(b"x");
    drop(first.publish().unwrap());
    assert_eq!(&flight.join().wait_blocking().unwrap()[..], b"x");
    assert!(matches!(
        flight.follow(0).next_blocking(1),
        Err(FlightError::Abandoned)
    ));
    pool.erase(key(1));
    drop(load(&pool, key(2), b"y"));
    assert!(
        matches!(flight.join().wait_blocking(), Err(FlightError::Abandoned)),
        "the slot is another's now"
    );
}

#[test]
fn a_failure_belongs_to_those_who_waited() {
    let pool = pool(MIB);
    let load = begin(&pool, key(1), 1);
    let (waiter, flight) = (load.flight().join(), load.flight());
    load.fail(error("no such thing"));
    let Err(FlightError::Failed(shared)) = waiter.wait_blocking() else {
        panic!("failed")
    };
    assert_eq!(shared.to_string(), "no such thing");
    assert!(matches!(
        flight.join().wait_blocking(),
        Err(FlightError::Failed(_))
    ));
    assert_eq!(pool.budget().held(Share::Download), 0);
    drop(super::load(&pool, key(1), b"z"));
}

#[test]
fn an_abandoned_load_is_taken_over() {
    let pool = pool(MIB);
    let load = begin(&pool, key(1), 1);
    let waiter = load.flight().join();
    drop(load);
    assert!(matches!(
        waiter.wait_blocking(),
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
        waiter.wait_blocking(),
        Err(FlightError::Abandoned)
    ));
    assert!(matches!(pool.claim(key(1)), Claim::Vacant(_)));
}

#[test]
fn followers_read_the_prefix_and_end_with_the_publication() {
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
    let mut follower = flight.follow(0);
    load.write(b"0123");
    let first = follower.next_blocking(3).unwrap().unwrap();
    assert_eq!(&first[..], b"012");
    let task = thread::spawn({
        let flight = Arc::clone(&flight);
        move || {
            let mut follower = flight.follow(9);
            futures::executor::block_on(async {
                (
                    follower.next(99).await,
                    follower.next(99).await.map(|end| end.is_none()),
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
    assert_eq!(
        &follower.next_blocking(99).unwrap().unwrap()[..],
        b"3456789"
    );
    assert!(follower.next_blocking(99).unwrap().is_none());

    // The frame is shared by the block and what followers hold: it returns when both let go.
    assert!(pool.erase(key(1)));
    assert_eq!(
        (&first[..], pool.budget().held(Share::Download)),
        (&b"012"[..], 4096)
    );
    drop(first);
    assert_eq!(pool.budget().held(Share::Download), 4096);
    drop(follower);
    assert_eq!(
        (pool.budget().held(Share::Download), pool.budget().idle()),
        (0, 4096)
    );
}

#[test]
fn a_follower_that_was_not_yet_looking_misses_nothing() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 2);
    let mut follower = load.flight().follow(0);
    load.write(b"ab");
    drop(load.publish().unwrap());
    assert_eq!(&follower.next_blocking(9).unwrap().unwrap()[..], b"ab");
    assert!(follower.next_blocking(9).unwrap().is_none());
}

#[test]
fn a_failed_load_ends_followers_but_not_their_memory() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 10);
    let mut follower = load.flight().follow(0);
    let mut behind = load.flight().follow(0);
    load.write(b"01234");
    let held: Followed = follower.next_blocking(5).unwrap().unwrap();
    load.fail(error("broken"));
    assert!(matches!(
        follower.next_blocking(1),
        Err(FlightError::Failed(_))
    ));
    assert!(
        matches!(behind.next_blocking(1), Err(FlightError::Failed(_))),
        "unread bytes are not offered as good"
    );
    drop((follower, behind));
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
fn a_block_without_followers_left_owns_its_frame() {
    let pool = pool(MIB);
    let mut load = begin(&pool, key(1), 2);
    let mut follower = load.flight().follow(0);
    load.write(b"ab");
    drop(follower.next_blocking(2).unwrap());
    drop(follower);
    drop(load.publish().unwrap());
    pool.erase(key(1));
    assert_eq!(pool.budget().held(Share::Download), 0);
}

#[test]
fn an_upload_s_frame_becomes_a_download_s_charge() {
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
fn what_crosses_threads_may() {
    fn sent<T: Send + 'static>() {}
    fn shared<T: Send + Sync + 'static>() {}
    sent::<crate::Load>();
    sent::<crate::FrameWait>();
    sent::<crate::Waiter>();
    sent::<crate::Follower>();
    shared::<crate::OwnedPin>();
    shared::<crate::Followed>();
    shared::<crate::Frame>();
    shared::<crate::BlockPool>();
    shared::<crate::Reservation>();
    shared::<crate::Pin<'static>>();
    drop(load(&pool(MIB), key(1), b"x"));
}
