//! Questions without authority.

use super::*;
use crate::rules::Rule;

/// A node without authority since a while, and without knowledge of another holder.
fn without_authority() -> Lone {
    let mut node = Lone::with_holder(ME);
    node.alive = false;
    node.pass(ms(5000));
    node
}

#[test]
fn reads_without_authority_share_the_next_question_only() {
    let mut node = without_authority();
    let first = question(&node.read(1));
    assert_eq!((node.read(2), node.read(3)), (vec![], vec![]));
    let actions = node.send(Event::Version(first, Some(1)));
    assert_eq!(actions[0], version(1, 1, Source::Origin));
    let second = question(&actions[1..]);
    let ended = node.send(Event::Version(second, Some(2)));
    assert_eq!(ended, [2, 3].map(|op| version(op, 2, Source::Origin)));
    // While the origin is slow, the next question waits for a moment only.
    question(&node.read(4));
    assert_eq!(node.read(5), []);
    let patience = node.node.settings.timing.patience;
    question(&node.pass(patience));
    // The third waits for the end of one.
    assert_eq!(node.read(6), []);
    assert_eq!(node.pass(patience), []);
}

/// A read that begins later than that moment waits for nothing.
#[test]
fn read_beside_one_slow_question_asks_at_once() {
    let mut node = without_authority();
    question(&node.read(1));
    assert_eq!(node.pass(ms(1000)), []);
    question(&node.read(2));
}

#[test]
fn reads_that_the_holder_has_answered_cost_no_question() {
    let mut node = Lone::with_holder(OTHER);
    let calls = [1, 2].map(|op| call(&node.read(op)));
    let first = question(&node.send(Event::Silent(calls[0])));
    assert_eq!(node.send(Event::Silent(calls[1])), []);
    let late = PeerResponse::Version {
        version: 3,
        lease: ms(0),
    };
    let ended = node.send(Event::Response(calls[1], Some(late)));
    assert_eq!(ended, [version(2, 3, Source::Peer)]);
    assert_eq!(node.pass(ms(1000)), []);
    let ended = node.send(Event::Version(first, Some(4)));
    assert_eq!(ended, [version(1, 4, Source::Origin)]);
    assert!(node.node.direct.is_empty());
}

/// Load of a hundred reads in 5 s on an origin that takes 5 s for each response.
#[derive(Debug, Default)]
struct SlowOrigin {
    /// Questions in progress, each with the time at which it was sent.
    questions: Vec<(QuestionId, Duration)>,
    sent: usize,
    most: usize,
    began: HashMap<OpId, Duration>,
    longest: Duration,
}

impl SlowOrigin {
    const TAKES: Duration = Duration::from_secs(5);

    fn take(&mut self, now: Duration, actions: Vec<Action<u64>>) {
        for action in actions {
            match action {
                Action::AskOrigin(question, _) => {
                    self.questions.push((question, now));
                    self.sent += 1;
                    self.most = self.most.max(self.questions.len());
                }
                // The version is the time at which the origin was asked.
                Action::Finish(op, Outcome::Version(asked, _)) => {
                    let began = self.began.remove(&op).unwrap();
                    assert!(ms(asked) >= began, "{began:?}: {asked} ms");
                    self.longest = self.longest.max(now - began);
                }
                action => panic!("{action:?}"),
            }
        }
    }

    fn of_reads(rules: Rules) -> Self {
        let mut node = without_authority();
        node.node.rules = rules;
        let mut origin = Self::default();
        for step in 0.. {
            let timers = node.pass(ms(50));
            origin.take(node.now, timers);
            let is_due = |(_, sent): &(_, Duration)| *sent + Self::TAKES <= node.now;
            let due: Vec<_> = origin.questions.extract_if(.., |of| is_due(of)).collect();
            for (question, sent) in due {
                let response = Event::Version(question, Some(sent.as_millis() as u64));
                let actions = node.send(response);
                origin.take(node.now, actions);
            }
            if step < 100 {
                origin.began.insert(OpId(step), node.now);
                let actions = node.read(step);
                origin.take(node.now, actions);
            } else if origin.began.is_empty() {
                return origin;
            }
        }
        origin
    }
}

#[test]
fn slow_origin_has_two_questions_of_a_node_in_the_time_of_one() {
    let origin = SlowOrigin::of_reads(Rules::default());
    // Two that begin 150 ms apart, and a third that all the other reads share.
    assert_eq!((origin.most, origin.sent), (2, 3));
    assert!(origin.longest <= SlowOrigin::TAKES * 2);
    let without = SlowOrigin::of_reads(Rules::without(&[Rule::TwoQuestions]));
    assert!(without.most > 20, "{}", without.most);
}
