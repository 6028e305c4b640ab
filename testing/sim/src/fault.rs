//! Faults of one request, and their probabilities.

use std::ops::Range;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;

use bywash_support::swarm::Swarm;

/// Fault of one request. Offsets are in bytes of the response body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with a 503 before the request has any effect.
    Unavailable,
    /// Fails a write with a 503 after it took effect.
    LoseResponse,
    /// Fails with a 404 although the object exists.
    NotFound,
    /// Never responds.
    StallResponse,
    /// Adds to the latency of the response.
    SlowFirstByte(Duration),
    /// Resets the connection within the body, which ends with an error.
    Reset {
        /// Bytes sent before the reset.
        after: u64,
    },
    /// Ends the body early without an error.
    Short {
        /// Bytes sent.
        after: u64,
    },
    /// Stops sending within the body and keeps the connection open.
    Stall {
        /// Bytes sent before the stall.
        after: u64,
    },
    /// Flips a bit of the body, which no header shows.
    Flip {
        /// Offset of its byte. None of a shorter body is flipped.
        at: u64,
    },
    /// Sends more bytes than the range of the response has.
    Long {
        /// Number of excess bytes.
        by: u64,
    },
    /// Sends a range other than the requested one, with its true Content-Range.
    WrongRange,
    /// Sends the whole object in place of the range, with its true Content-Range.
    IgnoreRange,
    /// Reports a wrong length of the object. Applies only to requests with a precondition: without one, a client cannot
    /// detect it.
    WrongTotal,
    /// Ignores the preconditions of the request.
    IgnorePrecondition,
    /// Overwrites the object just before the response.
    ChangeBefore,
    /// Overwrites the object while the body of the old version is sent.
    ChangeDuring {
        /// Bytes sent before the overwrite.
        after: u64,
    },
}

impl Fault {
    /// Returns the kind of the fault.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Unavailable => FaultKind::Unavailable,
            Self::LoseResponse => FaultKind::LoseResponse,
            Self::NotFound => FaultKind::NotFound,
            Self::StallResponse => FaultKind::StallResponse,
            Self::SlowFirstByte(_) => FaultKind::SlowFirstByte,
            Self::Reset { .. } => FaultKind::Reset,
            Self::Short { .. } => FaultKind::Short,
            Self::Stall { .. } => FaultKind::Stall,
            Self::Flip { .. } => FaultKind::Flip,
            Self::Long { .. } => FaultKind::Long,
            Self::WrongRange => FaultKind::WrongRange,
            Self::IgnoreRange => FaultKind::IgnoreRange,
            Self::WrongTotal => FaultKind::WrongTotal,
            Self::IgnorePrecondition => FaultKind::IgnorePrecondition,
            Self::ChangeBefore => FaultKind::ChangeBefore,
            Self::ChangeDuring { .. } => FaultKind::ChangeDuring,
        }
    }
}

/// Kind of a [`Fault`], without its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "documented at Fault")]
pub enum FaultKind {
    Unavailable,
    LoseResponse,
    NotFound,
    StallResponse,
    SlowFirstByte,
    Reset,
    Short,
    Stall,
    Flip,
    Long,
    WrongRange,
    IgnoreRange,
    WrongTotal,
    IgnorePrecondition,
    ChangeBefore,
    ChangeDuring,
}

impl FaultKind {
    /// All kinds that a reader can detect without a digest of the object.
    pub const WITHOUT_DIGEST: [Self; 15] = [
        Self::Unavailable,
        Self::LoseResponse,
        Self::NotFound,
        Self::StallResponse,
        Self::SlowFirstByte,
        Self::Reset,
        Self::Short,
        Self::Stall,
        Self::Long,
        Self::WrongRange,
        Self::IgnoreRange,
        Self::WrongTotal,
        Self::IgnorePrecondition,
        Self::ChangeBefore,
        Self::ChangeDuring,
    ];

    /// Returns whether the fault applies to requests without a response body (HEAD, LIST, writes).
    fn applies_without_body(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::LoseResponse
                | Self::StallResponse
                | Self::SlowFirstByte
                | Self::ChangeBefore
        )
    }

    /// Returns whether the fault can fail a read that would otherwise have succeeded. Overwrites do not count, as the oracle
    /// knows the versions; delays do not count either.
    #[must_use]
    pub fn can_fail_reads(self) -> bool {
        !matches!(
            self,
            Self::SlowFirstByte
                | Self::ChangeBefore
                | Self::ChangeDuring
                | Self::IgnorePrecondition
        )
    }

    /// Returns whether a reader with a precondition can take the fault for a change of the object.
    #[must_use]
    pub fn resembles_change(self) -> bool {
        matches!(
            self,
            Self::NotFound
                | Self::WrongRange
                | Self::IgnoreRange
                | Self::WrongTotal
                | Self::Long
                | Self::Short
        )
    }

    fn draw(self, rng: &mut StdRng) -> Fault {
        // The body length is not known yet: most offsets fall into the first blocks, and a fault after the end of the body
        // never happens.
        let after = |rng: &mut StdRng| {
            if rng.random_bool(0.2) {
                0
            } else {
                rng.random_range(0..96 * 1024)
            }
        };
        match self {
            Self::Unavailable => Fault::Unavailable,
            Self::LoseResponse => Fault::LoseResponse,
            Self::NotFound => Fault::NotFound,
            Self::StallResponse => Fault::StallResponse,
            Self::SlowFirstByte => {
                Fault::SlowFirstByte(Duration::from_millis(rng.random_range(100..5_000)))
            }
            Self::Reset => Fault::Reset { after: after(rng) },
            Self::Short => Fault::Short { after: after(rng) },
            Self::Stall => Fault::Stall { after: after(rng) },
            Self::Flip => Fault::Flip { at: after(rng) },
            Self::Long => Fault::Long {
                by: rng.random_range(1..10_000),
            },
            Self::WrongRange => Fault::WrongRange,
            Self::IgnoreRange => Fault::IgnoreRange,
            Self::WrongTotal => Fault::WrongTotal,
            Self::IgnorePrecondition => Fault::IgnorePrecondition,
            Self::ChangeBefore => Fault::ChangeBefore,
            Self::ChangeDuring => Fault::ChangeDuring { after: after(rng) },
        }
    }
}

/// Probabilities of faults, and the latency of the origin.
#[derive(Debug, Clone)]
pub struct FaultProfile {
    /// Time until the response begins.
    pub latency: Range<Duration>,
    /// Pause between two pieces of a body.
    pub pause: Range<Duration>,
    /// Length of one piece of a body, in bytes.
    pub piece: Range<usize>,
    /// Probability of each kind, per request.
    pub faults: Vec<(FaultKind, f64)>,
}

impl FaultProfile {
    /// Returns a profile without faults: latency of 5 to 20 ms, pieces of 1 to 16 KiB.
    #[must_use]
    pub fn none() -> Self {
        Self {
            latency: Duration::from_millis(5)..Duration::from_millis(20),
            pause: Duration::ZERO..Duration::from_millis(2),
            piece: 1024..16 * 1024,
            faults: Vec::new(),
        }
    }

    /// Returns a profile with a random half of the faults, each with a probability of 6 to 16 % per request.
    #[must_use]
    pub fn random(rng: &mut StdRng) -> Self {
        let swarm = Swarm::draw(rng, &FaultKind::WITHOUT_DIGEST);
        let rate = |kind: &FaultKind| (*kind, rng.random_range(0.06..0.16));
        Self {
            faults: swarm.on().iter().map(rate).collect(),
            ..Self::none()
        }
    }

    pub(crate) fn draw(&self, rng: &mut StdRng, body: bool) -> Vec<Fault> {
        let mut drawn = Vec::new();
        for &(kind, chance) in &self.faults {
            let hit = rng.random_bool(chance);
            if hit && (body || kind.applies_without_body()) {
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
