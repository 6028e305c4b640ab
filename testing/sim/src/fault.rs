//! What can go wrong with one request, and how often.

use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

/// Something that happens to one request. Offsets are in bytes of that answer's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A 503 before anything is done.
    Unavailable,
    /// A write is done, then answered with a 503.
    AnswerLost,
    /// A 404 for an object that exists.
    NotFound,
    /// No answer, ever.
    StallAnswer,
    /// The answer comes this much later.
    SlowFirstByte(Duration),
    /// The connection breaks after so many bytes: the body ends with an error.
    Reset {
        /// Bytes sent before it.
        after: u64,
    },
    /// The body ends early, as if it were complete.
    Short {
        /// Bytes sent before it.
        after: u64,
    },
    /// The body stops coming but does not end.
    Stall {
        /// Bytes sent before it.
        after: u64,
    },
    /// More bytes come than the answer's range has.
    Long {
        /// How many more.
        by: u64,
    },
    /// Another range than the one asked for is answered, and truthfully labelled.
    OtherRange,
    /// The whole object is answered instead of the range, truthfully labelled.
    RangeIgnored,
    /// The answer names a wrong length of the object. Only done to requests that carry a
    /// precondition, as one who knows nothing of the object could not tell.
    WrongTotal,
    /// The preconditions of the request are not looked at.
    IgnorePrecondition,
    /// The object is overwritten just before the request is answered.
    ChangeBefore,
    /// The object is overwritten while the body is sent; the body stays that of the old version.
    ChangeDuring {
        /// Bytes sent before it.
        after: u64,
    },
}

impl Fault {
    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Unavailable => FaultKind::Unavailable,
            Self::AnswerLost => FaultKind::AnswerLost,
            Self::NotFound => FaultKind::NotFound,
            Self::StallAnswer => FaultKind::StallAnswer,
            Self::SlowFirstByte(_) => FaultKind::SlowFirstByte,
            Self::Reset { .. } => FaultKind::Reset,
            Self::Short { .. } => FaultKind::Short,
            Self::Stall { .. } => FaultKind::Stall,
            Self::Long { .. } => FaultKind::Long,
            Self::OtherRange => FaultKind::OtherRange,
            Self::RangeIgnored => FaultKind::RangeIgnored,
            Self::WrongTotal => FaultKind::WrongTotal,
            Self::IgnorePrecondition => FaultKind::IgnorePrecondition,
            Self::ChangeBefore => FaultKind::ChangeBefore,
            Self::ChangeDuring { .. } => FaultKind::ChangeDuring,
        }
    }
}

/// [`Fault`] without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "documented at Fault")]
pub enum FaultKind {
    Unavailable,
    AnswerLost,
    NotFound,
    StallAnswer,
    SlowFirstByte,
    Reset,
    Short,
    Stall,
    Long,
    OtherRange,
    RangeIgnored,
    WrongTotal,
    IgnorePrecondition,
    ChangeBefore,
    ChangeDuring,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::Unavailable,
        Self::AnswerLost,
        Self::NotFound,
        Self::StallAnswer,
        Self::SlowFirstByte,
        Self::Reset,
        Self::Short,
        Self::Stall,
        Self::Long,
        Self::OtherRange,
        Self::RangeIgnored,
        Self::WrongTotal,
        Self::IgnorePrecondition,
        Self::ChangeBefore,
        Self::ChangeDuring,
    ];

    /// Kinds that can befall a request without object data (HEAD, LIST, writes).
    fn without_body(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::AnswerLost
                | Self::StallAnswer
                | Self::SlowFirstByte
                | Self::ChangeBefore
        )
    }

    /// Whether it can make a read fail that would otherwise have succeeded. A change cannot count:
    /// versions are judged by the oracle. Nor can slowness.
    #[must_use]
    pub fn breaks(self) -> bool {
        !matches!(
            self,
            Self::SlowFirstByte
                | Self::ChangeBefore
                | Self::ChangeDuring
                | Self::IgnorePrecondition
        )
    }

    /// Whether it looks to a pinned reader as if the object had changed.
    #[must_use]
    pub fn looks_changed(self) -> bool {
        matches!(
            self,
            Self::NotFound
                | Self::OtherRange
                | Self::RangeIgnored
                | Self::WrongTotal
                | Self::Long
                | Self::Short
        )
    }

    fn draw(self, rng: &mut StdRng) -> Fault {
        // An answer's body length is not known yet: most offsets fall into the first blocks, and
        // one beyond the end never happens, which is a case of its own.
        let after = |rng: &mut StdRng| {
            if rng.random_bool(0.2) {
                0
            } else {
                rng.random_range(0..96 * 1024)
            }
        };
        match self {
            Self::Unavailable => Fault::Unavailable,
            Self::AnswerLost => Fault::AnswerLost,
            Self::NotFound => Fault::NotFound,
            Self::StallAnswer => Fault::StallAnswer,
            Self::SlowFirstByte => {
                Fault::SlowFirstByte(Duration::from_millis(rng.random_range(100..5_000)))
            }
            Self::Reset => Fault::Reset { after: after(rng) },
            Self::Short => Fault::Short { after: after(rng) },
            Self::Stall => Fault::Stall { after: after(rng) },
            Self::Long => Fault::Long {
                by: rng.random_range(1..10_000),
            },
            Self::OtherRange => Fault::OtherRange,
            Self::RangeIgnored => Fault::RangeIgnored,
            Self::WrongTotal => Fault::WrongTotal,
            Self::IgnorePrecondition => Fault::IgnorePrecondition,
            Self::ChangeBefore => Fault::ChangeBefore,
            Self::ChangeDuring => Fault::ChangeDuring { after: after(rng) },
        }
    }
}

/// How often what goes wrong, and how slow the origin is.
#[derive(Debug, Clone)]
pub struct Weather {
    /// Time until a request is answered.
    pub latency: Range<Duration>,
    /// Pause between the pieces of a body.
    pub pause: Range<Duration>,
    /// Bytes of one piece of a body.
    pub piece: Range<usize>,
    /// Chance of each kind, a request.
    pub faults: Vec<(FaultKind, f64)>,
}

impl Weather {
    /// Nothing goes wrong: 5 to 20 ms to the answer, pieces of 1 to 16 KiB.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            latency: Duration::from_millis(5)..Duration::from_millis(20),
            pause: Duration::ZERO..Duration::from_millis(2),
            piece: 1024..16 * 1024,
            faults: Vec::new(),
        }
    }

    /// Some kinds of fault, each hitting up to every tenth request.
    #[must_use]
    pub fn storm(rng: &mut StdRng) -> Self {
        let some = rng.random_range(0.2..0.8);
        let mut faults = Vec::new();
        for kind in FaultKind::ALL {
            if rng.random_bool(some) {
                faults.push((kind, rng.random_range(0.01..0.1)));
            }
        }
        Self {
            faults,
            ..Self::calm()
        }
    }

    pub(crate) fn draw(&self, rng: &mut StdRng, body: bool) -> Vec<Fault> {
        let mut drawn = Vec::new();
        for &(kind, chance) in &self.faults {
            let hit = rng.random_bool(chance);
            if hit && (body || kind.without_body()) {
                drawn.push(kind.draw(rng));
            }
        }
        drawn
    }

    pub(crate) fn latency(&self, rng: &mut StdRng) -> Duration {
        between(&self.latency, rng)
    }

    pub(crate) fn pause(&self, rng: &mut StdRng) -> Duration {
        between(&self.pause, rng)
    }
}

fn between(range: &Range<Duration>, rng: &mut StdRng) -> Duration {
    if range.is_empty() {
        range.start
    } else {
        rng.random_range(range.clone())
    }
}
