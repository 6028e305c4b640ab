//! Questions to the origin: by a holder, and by a node without authority.
//!
//! A node without authority does not see the writes of others, so a read must not use a response
//! that the origin made before the read began. It joins only a question that is yet to be sent: the
//! next one. It is sent when the one in progress ends, or in parallel once that one has taken 150
//! ms. No more than two are in progress: the next waits for the end of one. So reads of a key cost
//! two requests in the time of one, however many they are and however slow the origin is.

use std::time::Duration;

use crate::authority::HolderQuestion;
use crate::message::{Action, OpId, Outcome, QuestionId, Source};
use crate::names::Key;
use crate::node::Node;
use crate::rules::Rule;
use crate::timers::Timer;

/// A question to the origin in progress.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) key: Key,
    /// When it was asked. The origin makes its response later.
    pub(crate) sent: Duration,
    pub(crate) purpose: Purpose,
}

#[derive(Debug)]
pub(crate) enum Purpose {
    Holder(HolderQuestion),
    /// The reads that began before it was asked.
    Direct(Vec<OpId>),
}

/// Questions without authority about one key.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    /// Those in progress, oldest first, each with the time at which it was sent.
    sent: Vec<(QuestionId, Duration)>,
    /// Reads that wait for the next one.
    next: Vec<OpId>,
}

impl Direct {
    /// Questions of one node about one key that are in progress at once. With one, a read that
    /// arrives after it was sent would wait for the whole of it.
    pub(crate) const AT_ONCE: usize = 2;

    /// Whether the next question may be sent at `now`: if none is in progress, or if fewer than
    /// `at_once` are and the newest has taken at least `patience`.
    fn may_ask(&self, now: Duration, patience: Duration, at_once: usize) -> bool {
        let newest = self.sent.last();
        newest.is_none_or(|(_, sent)| self.sent.len() < at_once && now >= *sent + patience)
    }
}

impl<V: Clone> Node<V> {
    /// Asks the origin for a read of this node, without authority.
    pub(crate) fn read_directly(&mut self, op: OpId) {
        let Some(read) = self.reads.get_mut(&op).filter(|read| !read.direct) else {
            return;
        };
        read.direct = true;
        let key = read.key.clone();
        let joins_any = !self.rules.holds(Rule::JoinUnsent);
        let direct = self.direct.entry(key.clone()).or_default();
        if joins_any
            && let Some((newest, _)) = direct.sent.last()
            && let Some(question) = self.questions.get_mut(newest)
            && let Purpose::Direct(reads) = &mut question.purpose
        {
            return reads.push(op);
        }
        direct.next.push(op);
        self.ask_next(&key);
    }

    /// Asks for all reads that wait, if the next question may be sent. Called when a read arrives,
    /// when a question ends, and when the newest has lasted for the patience.
    pub(crate) fn ask_next(&mut self, key: &Key) {
        let patience = self.settings.timing.patience;
        let at_once = if self.rules.holds(Rule::TwoQuestions) {
            Direct::AT_ONCE
        } else {
            usize::MAX
        };
        let Some(direct) = self.direct.get_mut(key) else {
            return;
        };
        if !direct.may_ask(self.now, patience, at_once) {
            return;
        }
        // The holder has responded late to some.
        direct.next.retain(|op| self.reads.contains_key(op));
        if direct.next.is_empty() {
            if direct.sent.is_empty() {
                self.direct.remove(key);
            }
            return;
        }
        let reads = std::mem::take(&mut direct.next);
        self.ids += 1;
        let id = QuestionId(self.ids);
        direct.sent.push((id, self.now));
        let question = Question {
            key: key.clone(),
            sent: self.now,
            purpose: Purpose::Direct(reads),
        };
        self.questions.insert(id, question);
        self.out.push(Action::AskOrigin(id, key.clone()));
        self.timers
            .set(self.now + patience, Timer::AskNext(key.clone()));
    }

    /// The origin has responded to a question.
    pub(crate) fn answered(&mut self, id: QuestionId, version: Option<V>) {
        let Some(question) = self.questions.remove(&id) else {
            return;
        };
        let Question { key, sent, purpose } = question;
        let reads = match purpose {
            Purpose::Holder(of) => return self.holder_answered(id, &key, sent, of, version),
            Purpose::Direct(reads) => reads,
        };
        for op in reads {
            let outcome = match &version {
                Some(version) => Outcome::Version(version.clone(), Source::Origin),
                None => Outcome::ReadFailed,
            };
            self.finish_read(op, outcome);
        }
        if let Some(direct) = self.direct.get_mut(&key) {
            direct.sent.retain(|(sent, _)| *sent != id);
            self.ask_next(&key);
        }
    }
}
