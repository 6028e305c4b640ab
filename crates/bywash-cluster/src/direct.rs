//! Questions to the origin: by a holder, and by a node without authority.
//!
//! A node without authority does not see the writes of others, so a read must not use a response that the origin made before the
//! read began. It joins only a question that is yet to be sent: the next one, which is sent when the one in progress ends, or a
//! little later at most. So reads of a key cost one request in the time of one, however many they are, and two beside each other
//! while the origin is slow.

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
    /// The newest in progress.
    newest: Option<QuestionId>,
    /// Reads that wait for the next one.
    next: Vec<OpId>,
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
        match direct.newest {
            Some(newest) if joins_any => {
                if let Some(question) = self.questions.get_mut(&newest)
                    && let Purpose::Direct(reads) = &mut question.purpose
                {
                    reads.push(op);
                }
            }
            Some(_) => direct.next.push(op),
            None => {
                direct.next.push(op);
                self.ask_next(&key);
            }
        }
    }

    /// Asks for all reads that wait.
    fn ask_next(&mut self, key: &Key) {
        let id = QuestionId(self.next_id());
        let Some(direct) = self.direct.get_mut(key) else {
            return;
        };
        if direct.next.is_empty() {
            if direct.newest.is_none() {
                self.direct.remove(key);
            }
            return;
        }
        let reads = std::mem::take(&mut direct.next);
        direct.newest = Some(id);
        let question = Question {
            key: key.clone(),
            sent: self.now,
            purpose: Purpose::Direct(reads),
        };
        self.questions.insert(id, question);
        self.out.push(Action::AskOrigin(id, key.clone()));
        let again = self.now + self.settings.timing.patience;
        self.timers.set(again, Timer::AskAgain(key.clone(), id));
    }

    /// The question has taken long: reads that came since wait no longer for its end.
    pub(crate) fn ask_again(&mut self, key: &Key, question: QuestionId) {
        let direct = self.direct.get(key);
        if direct.is_none_or(|direct| direct.newest != Some(question)) {
            return;
        }
        if direct.is_some_and(|direct| direct.next.is_empty()) {
            let again = self.now + self.settings.timing.patience;
            self.timers
                .set(again, Timer::AskAgain(key.clone(), question));
        } else {
            self.ask_next(key);
        }
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
        if let Some(direct) = self.direct.get_mut(&key)
            && direct.newest == Some(id)
        {
            direct.newest = None;
            self.ask_next(&key);
        }
    }
}
