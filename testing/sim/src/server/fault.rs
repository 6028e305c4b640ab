//! What goes wrong with requests to a server, and when.

use std::collections::HashMap;

use http::Method;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::lie::Lie;
use super::request::Asked;
use crate::pattern::mix;

/// What happens to one request. Numbers are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// Answered with 503; nothing is done.
    Unavailable,
    /// So much of the body is read, and kept if the protocol keeps prefixes; then 503.
    UnavailableAfter(u64),
    /// As much of the body is read, and kept if the protocol keeps prefixes; then the connection is closed.
    ResetAfter(u64),
    /// As much of the body is read, and kept if the protocol keeps prefixes; then nothing more happens.
    StallAfter(u64),
    /// Done, then the connection is closed.
    AnswerLost,
    /// Done, and no answer ever.
    StallAnswer,
    /// Done, and the answer's body is no sense in any format.
    BadBody,
    /// The protocol keeps so much of the body at most, and truthfully says so.
    Keep(u64),
    /// The protocol forgets the upload before it looks at the request.
    Forget,
    /// The protocol says that it keeps so much more than it does.
    AcknowledgeMore(u64),
    /// The protocol says that it keeps so much less than it does.
    AcknowledgeLess(u64),
    /// The protocol loses so much of what it kept, before it looks at the request.
    Lose(u64),
    /// The protocol damages a byte of what it keeps.
    Flip,
    /// Done, and the response is not true. Only GET and HEAD are lied to.
    Lie(Lie),
}

impl ServerFault {
    /// After how many bytes of the body nothing more is read.
    pub(crate) fn cut(self) -> Option<u64> {
        match self {
            Self::UnavailableAfter(bytes) | Self::ResetAfter(bytes) | Self::StallAfter(bytes) => {
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> ServerFaultKind {
        match self {
            Self::Unavailable => ServerFaultKind::Unavailable,
            Self::UnavailableAfter(_) => ServerFaultKind::UnavailableAfter,
            Self::ResetAfter(_) => ServerFaultKind::ResetAfter,
            Self::StallAfter(_) => ServerFaultKind::StallAfter,
            Self::AnswerLost => ServerFaultKind::AnswerLost,
            Self::StallAnswer => ServerFaultKind::StallAnswer,
            Self::BadBody => ServerFaultKind::BadBody,
            Self::Keep(_) => ServerFaultKind::Keep,
            Self::Forget => ServerFaultKind::Forget,
            Self::AcknowledgeMore(_) => ServerFaultKind::AcknowledgeMore,
            Self::AcknowledgeLess(_) => ServerFaultKind::AcknowledgeLess,
            Self::Lose(_) => ServerFaultKind::Lose,
            Self::Flip => ServerFaultKind::Flip,
            Self::Lie(_) => ServerFaultKind::Lie,
        }
    }
}

/// [`ServerFault`] without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "documented at ServerFault")]
pub enum ServerFaultKind {
    Unavailable,
    UnavailableAfter,
    ResetAfter,
    StallAfter,
    AnswerLost,
    StallAnswer,
    BadBody,
    Keep,
    Forget,
    AcknowledgeMore,
    AcknowledgeLess,
    Lose,
    Flip,
    Lie,
}

impl ServerFaultKind {
    /// What a client must get over, for as long as it does not happen again and again.
    pub const PASSING: [Self; 8] = [
        Self::Unavailable,
        Self::UnavailableAfter,
        Self::ResetAfter,
        Self::StallAfter,
        Self::AnswerLost,
        Self::StallAnswer,
        Self::BadBody,
        Self::Keep,
    ];

    /// After which an upload may end in an error that says so, but never in a wrong object taken for a right one.
    pub const LASTING: [Self; 5] = [
        Self::Forget,
        Self::AcknowledgeMore,
        Self::AcknowledgeLess,
        Self::Lose,
        Self::Flip,
    ];

    /// With numbers for a body of `length` bytes.
    fn draw(self, rng: &mut StdRng, length: u64) -> ServerFault {
        let within = |rng: &mut StdRng| match rng.random_range(0..8_u8) {
            0 => 0,
            1 => length,
            2 => length.saturating_sub(1),
            3 => length.min(256 * 1024),
            _ => rng.random_range(0..=length),
        };
        let some = |rng: &mut StdRng| 1 + within(rng);
        match self {
            Self::Unavailable => ServerFault::Unavailable,
            Self::UnavailableAfter => ServerFault::UnavailableAfter(within(rng)),
            Self::ResetAfter => ServerFault::ResetAfter(within(rng)),
            Self::StallAfter => ServerFault::StallAfter(within(rng)),
            Self::AnswerLost => ServerFault::AnswerLost,
            Self::StallAnswer => ServerFault::StallAnswer,
            Self::BadBody => ServerFault::BadBody,
            Self::Keep => ServerFault::Keep(within(rng)),
            Self::Forget => ServerFault::Forget,
            Self::AcknowledgeMore => ServerFault::AcknowledgeMore(some(rng)),
            Self::AcknowledgeLess => ServerFault::AcknowledgeLess(some(rng)),
            Self::Lose => ServerFault::Lose(some(rng)),
            Self::Flip => ServerFault::Flip,
            Self::Lie => ServerFault::Lie(Lie::ALL[rng.random_range(0..Lie::ALL.len())]),
        }
    }
}

/// Which requests meet which faults.
///
/// A draw depends on the seed, on the request's line and Content-Range, and on how often that came before; not on what other
/// requests come in between. So uploads side by side meet the same faults in every run.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    seed: u64,
    chances: Vec<(ServerFaultKind, f64)>,
    left: u64,
    seen: HashMap<u64, u64>,
    scripted: Vec<(String, ServerFault)>,
    lies: Vec<Lie>,
    lie_chance: f64,
}

impl FaultPlan {
    /// Nothing goes wrong.
    #[must_use]
    pub fn calm() -> Self {
        Self::default()
    }

    /// Each kind strikes a request with its chance, the first that does wins; after `most` faults there are no more.
    #[must_use]
    pub fn seeded(seed: u64, chances: &[(ServerFaultKind, f64)], most: u64) -> Self {
        Self {
            seed,
            chances: chances.to_vec(),
            left: most,
            ..Self::default()
        }
    }

    /// GET and HEAD are lied to with this chance, by the next of `lies` in turn; everything else is honest.
    ///
    /// Unlike other draws, which lie a request meets depends on the requests before it.
    #[must_use]
    pub fn lying(seed: u64, lies: &[Lie], chance: f64) -> Self {
        Self {
            seed,
            lies: lies.to_vec(),
            lie_chance: chance,
            ..Self::default()
        }
    }

    /// The next lie in rotation, if this request meets one.
    fn draw_lie(&mut self, asked: &Asked) -> Option<ServerFault> {
        if self.lies.is_empty() || !matches!(asked.method, Method::GET | Method::HEAD) {
            return None;
        }
        self.seed = mix(self.seed.wrapping_add(1));
        let mut rng = StdRng::seed_from_u64(self.seed);
        if !rng.random_bool(self.lie_chance) {
            return None;
        }
        let lie = self.lies.remove(0);
        self.lies.push(lie);
        Some(ServerFault::Lie(lie))
    }

    pub(super) fn script(&mut self, what: &str, fault: ServerFault) {
        self.scripted.push((what.to_owned(), fault));
    }

    pub(super) fn draw(&mut self, asked: &Asked) -> Option<ServerFault> {
        let line = asked.line();
        let range = asked.header("content-range").unwrap_or_default();
        let hit = self
            .scripted
            .iter()
            .position(|(what, _)| range.contains(what) || line.contains(what));
        if let Some(hit) = hit {
            return Some(self.scripted.remove(hit).1);
        }
        if let Some(lie) = self.draw_lie(asked) {
            return Some(lie);
        }
        if self.left == 0 {
            return None;
        }
        let key = line
            .bytes()
            .chain(range.bytes())
            .fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)));
        let seen = self.seen.entry(key).or_default();
        *seen += 1;
        let mut rng = StdRng::seed_from_u64(mix(key ^ *seen));
        let length = asked
            .header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        for &(kind, chance) in &self.chances {
            if rng.random_bool(chance) {
                self.left -= 1;
                return Some(kind.draw(&mut rng, length));
            }
        }
        None
    }
}
