#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use futures::FutureExt;
use futures::future::pending;

use super::*;

type Flights = Arc<SingleFlight<u32>>;

/// A read that joins at any time, and the guard if it leads.
fn join(
    flights: &Flights,
    oldest: Option<Instant>,
) -> (FlightWaiter<u32>, Option<FlightGuard<u32>>) {
    let mut led = None;
    let path = Path::from("a");
    let waiter = flights.join(&path, oldest, |guard| led = Some(guard));
    (waiter, led)
}

/// A read that leads.
fn lead(flights: &Flights) -> (FlightWaiter<u32>, FlightGuard<u32>) {
    let (waiter, guard) = join(flights, None);
    (waiter, guard.expect("no flight to join"))
}

/// A read that joins a flight.
fn follow(flights: &Flights) -> FlightWaiter<u32> {
    let (waiter, guard) = join(flights, None);
    assert!(guard.is_none(), "there is a flight to join");
    waiter
}

async fn value(waiter: &mut FlightWaiter<u32>) -> u32 {
    match waiter.outcome().await {
        FlightOutcome::Resolved(value) => value,
        other => panic!("{other:?}"),
    }
}

async fn error(waiter: &mut FlightWaiter<u32>) -> Arc<Error> {
    match waiter.outcome().await {
        FlightOutcome::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn waiters_share_one_result_and_the_next_read_leads() {
    let flights = Flights::default();
    let (mut first, guard) = lead(&flights);
    let (mut second, mut third) = (follow(&flights), follow(&flights));
    assert!(second.outcome().now_or_never().is_none(), "still in flight");
    let ends = tokio::spawn(async move { guard.finish(FlightOutcome::Resolved(7)) });
    for waiter in [&mut first, &mut second, &mut third] {
        assert_eq!(value(waiter).await, 7);
    }
    ends.await.unwrap();
    lead(&flights);
}

#[tokio::test]
async fn error_reaches_the_waiters_and_no_later_read() {
    let flights = Flights::default();
    let (mut first, guard) = lead(&flights);
    let mut second = follow(&flights);
    let failed = Arc::new(Error::NotImplemented {
        operation: "get".into(),
        implementer: "test".into(),
    });
    guard.finish(FlightOutcome::Failed(Arc::clone(&failed)));
    for waiter in [&mut first, &mut second] {
        assert!(Arc::ptr_eq(&error(waiter).await, &failed));
    }
    let (mut next, guard) = lead(&flights);
    guard.finish(FlightOutcome::Resolved(1));
    assert_eq!(value(&mut next).await, 1);
}

#[tokio::test]
async fn cancelled_waiter_leaves_the_flight_to_the_others() {
    let flights = Flights::default();
    let (first, guard) = lead(&flights);
    let mut second = follow(&flights);
    drop(first);
    let request = guard.unless_abandoned(pending::<()>(), || -> Option<()> { panic!("a waiter") });
    assert!(request.now_or_never().is_none(), "it goes on");
    guard.finish(FlightOutcome::Resolved(2));
    assert_eq!(value(&mut second).await, 2);
}

#[tokio::test]
async fn request_without_waiters_goes_on_only_with_a_permit() {
    let flights = Flights::default();
    let (waiter, guard) = lead(&flights);
    drop(waiter);
    let ended = guard.unless_abandoned(pending::<()>(), || None::<()>).await;
    assert_eq!(ended, None);
    // A read that joined before that tries again.
    let mut late = follow(&flights);
    guard.finish(FlightOutcome::Abandoned);
    assert!(matches!(late.outcome().await, FlightOutcome::Abandoned));

    let (waiter, guard) = lead(&flights);
    drop(waiter);
    let mut request = Box::pin(guard.unless_abandoned(pending::<()>(), || Some(())));
    assert!((&mut request).now_or_never().is_none(), "it goes on");
    drop(request);
    let mut late = follow(&flights);
    guard.finish(FlightOutcome::Resolved(3));
    assert_eq!(value(&mut late).await, 3);
}

#[tokio::test]
async fn cancelled_leader_fails_its_waiters_and_the_next_read_leads() {
    let flights = Flights::default();
    let (mut waiter, guard) = lead(&flights);
    let leader = tokio::spawn(async move {
        guard.unless_abandoned(pending::<()>(), || Some(())).await;
    });
    tokio::task::yield_now().await;
    leader.abort();
    assert!(error(&mut waiter).await.to_string().contains("ended"));
    lead(&flights);
}

#[tokio::test]
async fn panicking_leader_fails_its_waiters_and_the_next_read_leads() {
    let flights = Flights::default();
    let (mut waiter, guard) = lead(&flights);
    let leader = tokio::spawn(async move {
        let request = async { panic!("in the request") };
        guard.unless_abandoned::<(), ()>(request, || None).await;
    });
    assert!(leader.await.unwrap_err().is_panic());
    assert!(error(&mut waiter).await.to_string().contains("ended"));
    lead(&flights);
}

#[tokio::test]
async fn forgotten_flight_is_not_joined_and_its_end_leaves_the_newer_one() {
    let flights = Flights::default();
    let (mut old, old_guard) = lead(&flights);
    flights.forget(&Path::from("a"));
    let (mut new, new_guard) = lead(&flights);
    old_guard.finish(FlightOutcome::Resolved(1));
    assert_eq!(value(&mut old).await, 1);
    let mut joined = follow(&flights);
    new_guard.finish(FlightOutcome::Resolved(2));
    assert_eq!(value(&mut new).await, 2);
    assert_eq!(value(&mut joined).await, 2);
}

#[tokio::test(start_paused = true)]
async fn read_joins_no_request_sent_before_its_window() {
    let flights = Flights::default();
    let (waiter, guard) = lead(&flights);
    let begin = Instant::now();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(
        join(&flights, Some(Instant::now())).1.is_none(),
        "yet to be sent"
    );
    guard.sent(begin);
    guard.sent(Instant::now());
    assert!(
        waiter.sent_before(Instant::now()),
        "the first attempt counts"
    );
    assert!(!waiter.sent_before(begin));
    assert!(join(&flights, Some(begin)).1.is_none());
    let (_, newer) = join(&flights, Some(Instant::now()));
    assert!(newer.is_some(), "too old");
}
