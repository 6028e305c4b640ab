#![allow(clippy::unwrap_used, reason = "tests")]

mod direct;

use super::*;
use crate::message::{Believed, ClaimGuard, EtcdRequest, Source, Token, WriteResult};

const ME: Member = Member {
    node: NodeId(1),
    boot: Boot(10),
};
const OTHER: Member = Member {
    node: NodeId(2),
    boot: Boot(20),
};
const WINDOW: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn key() -> Key {
    Key::new("bucket", "key")
}

/// A node whose requests to etcd are answered at once: keepalives succeed, transactions as a test wants.
struct Lone {
    node: Node<u64>,
    now: Duration,
    alive: bool,
}

impl Lone {
    /// A registered node of a cluster of one shard, with this holder.
    fn with_holder(holder: Member) -> Self {
        let mut settings = Settings::new(ME.node, 7, 100);
        settings.shards = 1;
        let mut lone = Self {
            node: Node::new(settings, ms(0)),
            now: ms(0),
            alive: true,
        };
        let actions = lone.send(Event::Tick);
        let [Action::Etcd(call, EtcdRequest::Register)] = actions[..] else {
            panic!("{actions:?}");
        };
        lone.send(Event::Etcd(call, EtcdReply::Registered(ME.boot)));
        // So much heavier that the shard is its own by rank.
        let members = vec![(ME, 1_000_000, true), (OTHER, 1, true)];
        let shards = vec![(Shard(0), holder, Epoch(5))];
        lone.send(Event::View(9, ViewChange::Listed { members, shards }));
        lone
    }

    fn send(&mut self, event: Event<u64>) -> Vec<Action<u64>> {
        let actions = self.node.handle(self.now, event);
        self.answer_keepalives(actions)
    }

    fn answer_keepalives(&mut self, actions: Vec<Action<u64>>) -> Vec<Action<u64>> {
        let mut left = Vec::new();
        for action in actions {
            match action {
                Action::Etcd(call, EtcdRequest::Keepalive(_)) if self.alive => {
                    let reply = Event::Etcd(call, EtcdReply::Alive);
                    left.extend(self.node.handle(self.now, reply));
                }
                Action::Etcd(_, EtcdRequest::Keepalive(_)) => {}
                action => left.push(action),
            }
        }
        left
    }

    /// Lets time pass, and returns the actions of timers.
    fn pass(&mut self, time: Duration) -> Vec<Action<u64>> {
        let end = self.now + time;
        let mut actions = Vec::new();
        while let Some(next) = self.node.next_timer().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            actions.extend(self.send(Event::Tick));
        }
        self.now = end;
        actions
    }

    fn read(&mut self, op: u64) -> Vec<Action<u64>> {
        self.send(Event::Read(OpId(op), key(), WINDOW))
    }
}

fn question(actions: &[Action<u64>]) -> QuestionId {
    match actions {
        [Action::AskOrigin(question, _)] => *question,
        _ => panic!("{actions:?}"),
    }
}

/// The only request to another node among `actions`.
fn call(actions: &[Action<u64>]) -> CallId {
    let calls = actions.iter().filter_map(|action| match action {
        Action::Send(_, call, ..) => Some(*call),
        _ => None,
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(calls.len(), 1, "{actions:?}");
    calls[0]
}

fn version(op: u64, version: u64, source: Source) -> Action<u64> {
    Action::Finish(OpId(op), Outcome::Version(version, source))
}

#[test]
fn holder_asks_the_origin_once_a_window() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&holder.read(1));
    assert_eq!(holder.read(2), [], "joins");
    holder.pass(ms(400));
    let ended = holder.send(Event::Version(asked, Some(8)));
    let expected = [1, 2].map(|op| version(op, 8, Source::Holder));
    assert_eq!(ended, expected);
    holder.pass(ms(600));
    assert_eq!(holder.read(3), [version(3, 8, Source::Holder)]);
    holder.pass(ms(1));
    question(&holder.read(4));
}

#[test]
fn readers_of_a_slow_origin_join_no_question_older_than_the_window() {
    let mut holder = Lone::with_holder(ME);
    let slow = question(&holder.read(1));
    holder.pass(ms(1001));
    let newer = question(&holder.read(2));
    assert_eq!(
        holder.send(Event::Version(newer, Some(9))),
        [version(2, 9, Source::Holder)]
    );
    // The older response arrives later and replaces nothing.
    holder.send(Event::Version(slow, Some(8)));
    assert_eq!(holder.read(3), [version(3, 9, Source::Holder)]);
}

#[test]
fn read_asks_the_origin_beside_a_silent_holder_and_uses_a_late_response_once() {
    let mut node = Lone::with_holder(OTHER);
    let opened = call(&node.read(1));
    node.pass(ms(150));
    question(&node.send(Event::Silent(opened)));
    node.pass(ms(20_000));
    let late = PeerResponse::Version {
        version: 3,
        lease: WINDOW,
    };
    let ended = node.send(Event::Response(opened, Some(late)));
    assert_eq!(ended, [version(1, 3, Source::Peer)]);
    // It leased nothing.
    call(&node.read(2));
}

/// The origin took six seconds for a response that it made before a write, or before the shard was
/// elsewhere and returned.
#[test]
fn response_of_the_origin_from_before_a_write_is_recorded_by_no_holder() {
    for step in [Step::Write, Step::NewHolder] {
        let mut holder = Lone::with_holder(ME);
        let slow = question(&holder.send(Event::Read(OpId(1), key(), ms(60_000))));
        holder.pass(ms(3000));
        match step {
            Step::Write => {
                let (token, key) = (token(), key());
                let end = PeerRequest::End { token, key };
                let done = Action::Reply(OTHER.node, CallId(2), PeerResponse::Done);
                assert_eq!(request(&mut holder, 2, end), [done]);
            }
            Step::NewHolder => {
                for (revision, of) in [(10, OTHER), (11, ME)] {
                    let change = ViewChange::Shard(Shard(0), of, Epoch(revision));
                    holder.send(Event::View(revision, change));
                }
            }
        }
        holder.pass(ms(3000));
        // The read that waited asks for itself, and nothing is known.
        let again = question(&holder.send(Event::Version(slow, Some(1))));
        let ended = holder.send(Event::Version(again, Some(2)));
        assert_eq!(ended, [version(1, 2, Source::Origin)], "{step:?}");
        question(&holder.read(2));
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write,
    NewHolder,
}

#[test]
fn node_that_fails_thrice_is_passed_by_for_a_while() {
    let mut node = Lone::with_holder(OTHER);
    for op in 1..=3 {
        let opened = call(&node.read(op));
        node.send(Event::Response(opened, None));
    }
    let passed_by = node.read(4);
    assert!(!passed_by.iter().any(|of| matches!(of, Action::Send(..))));
    node.pass(ms(1001));
    call(&node.read(5));
}

#[test]
fn lease_counts_from_the_sending_and_not_at_all_if_its_key_was_dropped() {
    let mut node = Lone::with_holder(OTHER);
    let opened = call(&node.read(1));
    node.pass(ms(100));
    let response = PeerResponse::Version {
        version: 3,
        lease: WINDOW,
    };
    node.send(Event::Response(opened, Some(response.clone())));
    // 1 s less the margin, from the sending.
    node.pass(ms(699));
    assert_eq!(node.read(2), [version(2, 3, Source::Lease)]);
    node.pass(ms(1));
    let opened = call(&node.read(3));
    let dropped = node.send(Event::Request(
        OTHER.node,
        CallId(99),
        PeerRequest::Drop { key: key() },
    ));
    let reply = Action::Reply(OTHER.node, CallId(99), PeerResponse::Dropped);
    assert_eq!(dropped, [reply]);
    let ended = node.send(Event::Response(opened, Some(response)));
    assert_eq!(ended, [version(3, 3, Source::Peer)]);
    call(&node.read(4));
}

/// Beyond the limit a version is used once, and the holder is asked again.
#[test]
fn leases_beyond_the_limit_are_not_kept_and_their_reads_are_answered() {
    let mut node = Lone::with_holder(OTHER);
    let max = node.node.settings.max_objects as u64;
    let lease = PeerResponse::Version {
        version: 3,
        lease: WINDOW,
    };
    let path = |number: u64| Key::new("bucket", number.to_string());
    let mut op = 0;
    let mut read = |node: &mut Lone, number| {
        op += 1;
        (op, node.send(Event::Read(OpId(op), path(number), WINDOW)))
    };
    for number in 0..=max {
        let (op, asked) = read(&mut node, number);
        let ended = node.send(Event::Response(call(&asked), Some(lease.clone())));
        assert_eq!(ended, [version(op, 3, Source::Peer)], "{number}");
    }
    let (op, found) = read(&mut node, max - 1);
    assert_eq!(found, [version(op, 3, Source::Lease)]);
    call(&read(&mut node, max).1);
    // Expired leases make room.
    node.pass(WINDOW);
    let (op, asked) = read(&mut node, max);
    let ended = node.send(Event::Response(call(&asked), Some(lease)));
    assert_eq!(ended, [version(op, 3, Source::Peer)]);
    let (op, found) = read(&mut node, max);
    assert_eq!(found, [version(op, 3, Source::Lease)]);
}

#[test]
fn lease_of_a_holder_with_a_longer_maximum_is_cut() {
    let mut node = Lone::with_holder(OTHER);
    let asked = call(&node.read(1));
    let (version, lease) = (7, Duration::MAX);
    let response = PeerResponse::Version { version, lease };
    node.send(Event::Response(asked, Some(response)));
    let lease = Timing::DEFAULT.read_lease;
    let at = |time| node.node.current(time, &key(), WINDOW);
    assert_eq!(at(node.now), Some((7, Source::Lease)));
    assert_eq!(at(node.now + lease), None);
}

#[test]
fn longest_window_is_no_overflow() {
    let mut node = Lone::with_holder(ME);
    node.pass(ms(1));
    let window = Duration::MAX;
    let of = |op| Event::Read(OpId(op), key(), window);
    let question = question(&node.send(of(1)));
    assert_eq!(node.send(of(2)), [], "joined");
    node.send(Event::Version(question, Some(7)));
    assert_eq!(node.send(of(3)), [version(3, 7, Source::Holder)]);
    node.pass(Duration::from_secs(10));
    let current = node.node.current(node.now, &key(), window);
    assert_eq!(current, Some((7, Source::Holder)));
}

/// Another node's request.
fn request(node: &mut Lone, call: u64, request: PeerRequest) -> Vec<Action<u64>> {
    node.send(Event::Request(OTHER.node, CallId(call), request))
}

fn token() -> Token {
    Token {
        node: OTHER.node,
        process: 3,
        op: OpId(1),
    }
}

fn open() -> PeerRequest {
    PeerRequest::Open {
        key: key(),
        window: WINDOW,
    }
}

#[test]
fn begin_ends_leases_and_marks_the_key_until_its_end_or_its_time() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&request(&mut holder, 1, open()));
    holder.send(Event::Version(asked, Some(8)));
    let begin = PeerRequest::Begin {
        token: token(),
        key: key(),
    };
    let dropping = call(&request(&mut holder, 2, begin));
    let done = |call| [Action::Reply(OTHER.node, CallId(call), PeerResponse::Done)];
    let dropped = Event::Response(dropping, Some(PeerResponse::Dropped));
    assert_eq!(holder.send(dropped), done(2));
    let refused = [Action::Reply(
        OTHER.node,
        CallId(3),
        PeerResponse::AskOrigin,
    )];
    assert_eq!(request(&mut holder, 3, open()), refused);
    let end = PeerRequest::End {
        token: token(),
        key: key(),
    };
    assert_eq!(request(&mut holder, 4, end), done(4));
    question(&holder.read(1));
    // A writer that dies leaves its mark for a while.
    let dying = PeerRequest::Begin {
        token: Token {
            op: OpId(2),
            ..token()
        },
        key: key(),
    };
    assert_eq!(request(&mut holder, 5, dying), done(5));
    let timing = holder.node.settings.timing;
    holder.pass(timing.mark - ms(1));
    let refused = [Action::Reply(
        OTHER.node,
        CallId(6),
        PeerResponse::AskOrigin,
    )];
    assert_eq!(request(&mut holder, 6, open()), refused);
    holder.pass(ms(1));
    question(&request(&mut holder, 7, open()));
}

#[test]
fn begin_that_is_later_than_its_end_marks_nothing() {
    let mut holder = Lone::with_holder(ME);
    let token = |op| Token {
        op: OpId(op),
        ..token()
    };
    let begin = |op| PeerRequest::Begin {
        token: token(op),
        key: key(),
    };
    let end = |op| PeerRequest::End {
        token: token(op),
        key: key(),
    };
    let done = [Action::Reply(OTHER.node, CallId(1), PeerResponse::Done)];
    assert_eq!(request(&mut holder, 1, end(1)), done);
    assert_eq!(request(&mut holder, 1, begin(1)), done);
    question(&holder.read(1));
    // The begin that a long write repeats may be late too.
    assert_eq!(request(&mut holder, 1, begin(2)), done);
    assert_eq!(request(&mut holder, 1, end(2)), done);
    assert_eq!(request(&mut holder, 1, begin(2)), done);
    question(&holder.read(2));
    // Another write marks the key.
    assert_eq!(request(&mut holder, 1, begin(3)), done);
    let refused = [Action::Reply(
        OTHER.node,
        CallId(1),
        PeerResponse::AskOrigin,
    )];
    assert_eq!(request(&mut holder, 1, open()), refused);
}

#[test]
fn ended_writes_are_forgotten_past_their_limit_and_after_their_time() {
    use crate::limits::MAX_ENDED_WRITES;
    let mut holder = Lone::with_holder(ME);
    let end = |holder: &mut Lone, op| {
        let token = Token {
            op: OpId(op),
            ..token()
        };
        request(holder, 1, PeerRequest::End { token, key: key() });
        holder.node.ended_writes.len()
    };
    let max = MAX_ENDED_WRITES as u64;
    for op in 1..=max {
        assert_eq!(end(&mut holder, op) as u64, op);
    }
    assert_eq!(end(&mut holder, 1) as u64, max, "an end that is repeated");
    assert_eq!(end(&mut holder, max + 1) as u64, max);
    holder.pass(holder.node.settings.timing.mark);
    assert_eq!(end(&mut holder, max + 2), 1);
}

#[test]
fn silent_reader_is_waited_out() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&request(&mut holder, 1, open()));
    holder.send(Event::Version(asked, Some(8)));
    let end = PeerRequest::End {
        token: token(),
        key: key(),
    };
    let dropping = call(&request(&mut holder, 2, end));
    assert_eq!(holder.send(Event::Response(dropping, None)), []);
    assert_eq!(holder.pass(ms(1199)), []);
    let done = Action::Reply(OTHER.node, CallId(2), PeerResponse::Done);
    assert_eq!(holder.pass(ms(1)), [done]);
}

#[test]
fn write_without_an_end_waits_for_its_window_and_is_slowed_down_beyond_the_longest() {
    for (window, wait, outcome) in [
        (WINDOW, ms(1250), Outcome::Acknowledged { waited: true }),
        (ms(5001), ms(15_000), Outcome::SlowDown),
    ] {
        let mut node = Lone::with_holder(ME);
        node.alive = false;
        node.pass(ms(5000));
        let op = OpId(1);
        let sent = node.send(Event::Write(op, key(), window));
        assert_eq!(sent, [Action::WriteOrigin(op)]);
        assert_eq!(
            node.send(Event::Written(
                op,
                WriteResult::Written,
                Believed::default()
            )),
            []
        );
        let finished = |actions: Vec<Action<u64>>| {
            let finish = |action: &Action<u64>| matches!(action, Action::Finish(..));
            actions.into_iter().find(finish)
        };
        assert_eq!(finished(node.pass(wait - ms(1))), None);
        assert_eq!(
            finished(node.pass(ms(1))),
            Some(Action::Finish(op, outcome))
        );
    }
}

#[test]
fn write_without_an_end_waits_for_what_is_believed_when_it_ends() {
    let acknowledged = Outcome::Acknowledged { waited: true };
    for (window, gone, wait, outcome) in [
        (WINDOW, true, ms(7000), acknowledged.clone()),
        (ms(5001), true, ms(15_000), Outcome::SlowDown),
        (ms(0), false, ms(1250), acknowledged),
    ] {
        let mut node = Lone::with_holder(ME);
        node.alive = false;
        node.pass(ms(5000));
        let until = if gone { node.now + ms(7000) } else { ms(0) };
        let op = OpId(1);
        node.send(Event::Write(op, key(), WINDOW));
        let believed = Believed { window, until };
        node.send(Event::Written(op, WriteResult::Written, believed));
        let finish = |action: &Action<u64>| matches!(action, Action::Finish(..));
        assert!(!node.pass(wait - ms(1)).iter().any(finish));
        let ended = node.pass(ms(1)).into_iter().find(finish);
        assert_eq!(ended, Some(Action::Finish(op, outcome)));
    }
}

#[test]
fn long_write_renews_its_mark() {
    let mut node = Lone::with_holder(OTHER);
    let op = OpId(1);
    let begin = call(&node.send(Event::Write(op, key(), WINDOW)));
    let sent = node.send(Event::Response(begin, Some(PeerResponse::Done)));
    assert_eq!(sent, [Action::WriteOrigin(op)]);
    let renewed = node.pass(ms(15_000));
    let begins = renewed
        .iter()
        .filter(|action| matches!(action, Action::Send(_, _, PeerRequest::Begin { .. }, _)));
    assert_eq!(begins.count(), 3);
}

#[test]
fn state_of_a_key_is_removed_when_it_is_unused_and_bounded_before() {
    let mut holder = Lone::with_holder(ME);
    let read = |holder: &mut Lone, op: u64| {
        let name = Key::new("bucket", op.to_string());
        holder.send(Event::Read(OpId(op), name, WINDOW))
    };
    for op in 0..150 {
        let asked = question(&read(&mut holder, op));
        holder.send(Event::Version(asked, Some(op)));
        assert!(holder.node.status().objects <= 100);
    }
    // Known versions made room. Entries in use do not: reads beyond the maximum ask the origin themselves.
    for op in 200..300 {
        question(&read(&mut holder, op));
    }
    assert_eq!(holder.node.status().objects, 100);
    let beyond = question(&read(&mut holder, 300));
    let ended = holder.send(Event::Version(beyond, Some(1)));
    assert_eq!(ended, [version(300, 1, Source::Origin)]);
    let questions: Vec<_> = holder.node.questions.keys().copied().collect();
    for question in questions {
        holder.send(Event::Version(question, Some(1)));
    }
    holder.pass(ms(10_000));
    assert_eq!(holder.node.status().objects, 0);
    assert!(holder.node.direct.is_empty() && holder.node.reads.is_empty());
}

#[test]
fn authority_ends_by_the_own_clock_and_returns_knowing_nothing() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&holder.send(Event::Read(OpId(1), key(), ms(60_000))));
    holder.send(Event::Version(asked, Some(8)));
    holder.alive = false;
    holder.pass(ms(5000));
    assert_eq!(holder.node.status().shards, 0);
    let asked = question(&holder.send(Event::Read(OpId(2), key(), ms(60_000))));
    let ended = holder.send(Event::Version(asked, Some(9)));
    assert_eq!(ended, [version(2, 9, Source::Origin)]);
    holder.alive = true;
    holder.pass(ms(1000));
    assert_eq!(holder.node.status().shards, 1);
    question(&holder.send(Event::Read(OpId(3), key(), ms(60_000))));
}

#[test]
fn registration_that_is_gone_ends_authority_and_another_is_made() {
    for gone in [
        Event::View(10, ViewChange::Down(ME)),
        Event::ClusterChanged,
        Event::Request(OTHER.node, CallId(1), PeerRequest::Released(ME.boot)),
    ] {
        let mut holder = Lone::with_holder(ME);
        let actions = holder.send(gone);
        let registers =
            |action: &Action<u64>| matches!(action, Action::Etcd(_, EtcdRequest::Register));
        assert_eq!(actions.iter().filter(|action| registers(action)).count(), 1);
        assert_eq!(holder.node.status().shards, 0);
        assert_eq!(holder.node.status().member, None);
    }
}

#[test]
fn shard_that_a_restored_etcd_has_as_its_own_is_claimed_late() {
    let mut node = Lone::with_holder(ME);
    let actions = node.send(Event::ClusterChanged);
    let [Action::Etcd(call, EtcdRequest::Register)] = actions[..] else {
        panic!("{actions:?}");
    };
    let again = Member {
        node: ME.node,
        boot: Boot(11),
    };
    node.send(Event::Etcd(call, EtcdReply::Registered(again.boot)));
    let members = vec![(again, 1_000_000, true), (OTHER, 1, true)];
    let shards = vec![(Shard(0), ME, Epoch(3))];
    node.send(Event::View(4, ViewChange::Listed { members, shards }));
    assert_eq!(node.pass(ms(6900)), []);
    let claimed = node.pass(ms(200));
    let claim = EtcdRequest::Claim {
        shard: Shard(0),
        guard: ClaimGuard::Gone(ME, Epoch(3)),
        to: again,
    };
    assert!(
        matches!(claimed[..], [Action::Etcd(_, made)] if made == claim),
        "{claimed:?}"
    );
}

#[test]
fn word_is_given_when_leases_have_ended() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&request(&mut holder, 1, open()));
    holder.send(Event::Version(asked, Some(8)));
    let word = |holder: &mut Lone, boot| {
        let actions = request(holder, 2, PeerRequest::Released(boot));
        actions
            .iter()
            .any(|action| matches!(action, Action::Reply(_, _, PeerResponse::Released(true))))
    };
    assert!(!word(&mut holder, ME.boot), "the lease lasts");
    // A process that has just started does not know the leases of the one before.
    assert!(!word(&mut holder, Boot(4)));
    holder.pass(ms(1201));
    assert!(word(&mut holder, ME.boot));
    assert!(!word(&mut holder, Boot(4)));
    holder.pass(ms(240));
    assert!(word(&mut holder, Boot(4)));
}

#[test]
fn process_that_ends_hands_its_shards_over_when_their_leases_have_ended() {
    let mut holder = Lone::with_holder(ME);
    let asked = question(&request(&mut holder, 1, open()));
    holder.send(Event::Version(asked, Some(8)));
    assert_eq!(holder.send(Event::Leave), []);
    assert_eq!(holder.node.status().shards, 0, "without authority at once");
    assert_eq!(holder.pass(ms(1199)), []);
    let handed = holder.pass(ms(1));
    let hand = EtcdRequest::Hand {
        shard: Shard(0),
        epoch: Epoch(5),
        to: OTHER,
    };
    let [Action::Etcd(call, asked)] = handed[..] else {
        panic!("{handed:?}");
    };
    assert_eq!(asked, hand);
    // The result is unknown: it is asked again.
    holder.send(Event::Etcd(call, EtcdReply::Unknown));
    let again = holder.pass(ms(100));
    assert!(
        matches!(again[..], [Action::Etcd(_, again)] if again == hand),
        "{again:?}"
    );
}

#[test]
fn shard_whose_new_holder_is_gone_is_taken_up_again() {
    let mut holder = Lone::with_holder(ME);
    assert!(holder.node.give(Shard(0), OTHER.node));
    let handed = holder.pass(ms(0));
    let [Action::Etcd(call, EtcdRequest::Hand { .. })] = handed[..] else {
        panic!("{handed:?}");
    };
    let current = Some((ME, Epoch(5)));
    holder.send(Event::Etcd(call, EtcdReply::Refused(current)));
    assert_eq!(holder.node.status().shards, 1);
}

#[test]
fn registration_whose_response_was_lost_is_revoked() {
    let mut node = Lone::with_holder(OTHER);
    let lost = Member {
        node: ME.node,
        boot: Boot(11),
    };
    let actions = node.send(Event::View(11, ViewChange::Up(lost, 1, true)));
    let revoke = |action: &Action<u64>| matches!(action, Action::Etcd(_, EtcdRequest::Revoke(member)) if *member == lost);
    assert!(
        matches!(&actions[..], [action] if revoke(action)),
        "{actions:?}"
    );
}
