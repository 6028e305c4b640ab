//! Faults of requests to a server, and plans that draw them.

use std::collections::HashMap;

use http::Method;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::lie::Lie;
use super::request::HttpRequest;
use bywash_support::pattern::mix;

/// Fault of one request. Numbers are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    /// Responds with 503 without executing the request.
    Unavailable,
    /// Responds with this status without executing the request.
    Refuse(u16),
    /// Closes the connection without executing the request.
    Reset,
    /// Reads this much of the body, which the protocol stores if it stores prefixes, and responds with 503.
    UnavailableAfter(u64),
    /// Reads this much of the body, which the protocol stores if it stores prefixes, and closes the connection.
    ResetAfter(u64),
    /// Reads this much of the body, which the protocol stores if it stores prefixes, and stalls.
    StallAfter(u64),
    /// Executes the request and closes the connection without a response.
    LoseResponse,
    /// Executes the request and never responds.
    StallResponse,
    /// Executes the request and responds with a body that is valid in no format.
    BadBody,
    /// The protocol stores at most this much of the body, and acknowledges what it stored.
    StoreAtMost(u64),
    /// The protocol forgets the upload before it executes the request.
    ForgetUpload,
    /// The protocol acknowledges this much more than it stored.
    AcknowledgeMore(u64),
    /// The protocol acknowledges this much less than it stored.
    AcknowledgeLess(u64),
    /// The protocol loses this much of the stored bytes before it executes the request.
    LoseBytes(u64),
    /// The protocol corrupts one byte that it stores.
    FlipBit,
    /// Executes the request and falsifies the response. Plans falsify only responses to GET and HEAD.
    Lie(Lie),
}

impl ServerFault {
    /// Returns the length after which the server stops reading the body.
    pub(crate) fn cut(self) -> Option<u64> {
        match self {
            Self::UnavailableAfter(bytes) | Self::ResetAfter(bytes) | Self::StallAfter(bytes) => {
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Returns the kind of the fault.
    #[must_use]
    pub fn kind(self) -> ServerFaultKind {
        match self {
            Self::Unavailable => ServerFaultKind::Unavailable,
            Self::Refuse(_) => ServerFaultKind::Refuse,
            Self::Reset => ServerFaultKind::Reset,
            Self::UnavailableAfter(_) => ServerFaultKind::UnavailableAfter,
            Self::ResetAfter(_) => ServerFaultKind::ResetAfter,
            Self::StallAfter(_) => ServerFaultKind::StallAfter,
            Self::LoseResponse => ServerFaultKind::LoseResponse,
            Self::StallResponse => ServerFaultKind::StallResponse,
            Self::BadBody => ServerFaultKind::BadBody,
            Self::StoreAtMost(_) => ServerFaultKind::StoreAtMost,
            Self::ForgetUpload => ServerFaultKind::ForgetUpload,
            Self::AcknowledgeMore(_) => ServerFaultKind::AcknowledgeMore,
            Self::AcknowledgeLess(_) => ServerFaultKind::AcknowledgeLess,
            Self::LoseBytes(_) => ServerFaultKind::LoseBytes,
            Self::FlipBit => ServerFaultKind::FlipBit,
            Self::Lie(_) => ServerFaultKind::Lie,
        }
    }
}

/// Kind of a [`ServerFault`], without its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "documented at ServerFault")]
pub enum ServerFaultKind {
    Unavailable,
    Refuse,
    Reset,
    UnavailableAfter,
    ResetAfter,
    StallAfter,
    LoseResponse,
    StallResponse,
    BadBody,
    StoreAtMost,
    ForgetUpload,
    AcknowledgeMore,
    AcknowledgeLess,
    LoseBytes,
    FlipBit,
    Lie,
}

impl ServerFaultKind {
    /// Transient faults: a client must succeed despite them if there are not too many.
    pub const TRANSIENT: [Self; 8] = [
        Self::Unavailable,
        Self::UnavailableAfter,
        Self::ResetAfter,
        Self::StallAfter,
        Self::LoseResponse,
        Self::StallResponse,
        Self::BadBody,
        Self::StoreAtMost,
    ];

    /// Permanent faults: an upload may fail with an error that names the loss, but must not report a wrong object as stored.
    pub const PERMANENT: [Self; 5] = [
        Self::ForgetUpload,
        Self::AcknowledgeMore,
        Self::AcknowledgeLess,
        Self::LoseBytes,
        Self::FlipBit,
    ];

    /// Draws the parameters of the fault, for a body of `length` bytes.
    fn draw(self, rng: &mut StdRng, length: u64) -> ServerFault {
        let within = |rng: &mut StdRng| match rng.random_range(0..8_u8) {
            0 => 0,
            1 => length,
            2 => length.saturating_sub(1),
            3 => length.min(256 * 1024),
            _ => rng.random_range(0..=length),
        };
        let positive = |rng: &mut StdRng| 1 + within(rng);
        match self {
            Self::Unavailable => ServerFault::Unavailable,
            Self::Refuse => ServerFault::Refuse([400, 401, 403][rng.random_range(0..3)]),
            Self::Reset => ServerFault::Reset,
            Self::UnavailableAfter => ServerFault::UnavailableAfter(within(rng)),
            Self::ResetAfter => ServerFault::ResetAfter(within(rng)),
            Self::StallAfter => ServerFault::StallAfter(within(rng)),
            Self::LoseResponse => ServerFault::LoseResponse,
            Self::StallResponse => ServerFault::StallResponse,
            Self::BadBody => ServerFault::BadBody,
            Self::StoreAtMost => ServerFault::StoreAtMost(within(rng)),
            Self::ForgetUpload => ServerFault::ForgetUpload,
            Self::AcknowledgeMore => ServerFault::AcknowledgeMore(positive(rng)),
            Self::AcknowledgeLess => ServerFault::AcknowledgeLess(positive(rng)),
            Self::LoseBytes => ServerFault::LoseBytes(positive(rng)),
            Self::FlipBit => ServerFault::FlipBit,
            Self::Lie => ServerFault::Lie(Lie::ALL[rng.random_range(0..Lie::ALL.len())]),
        }
    }
}

/// Plan of the faults of a server.
///
/// A draw depends on the seed, on the line and Content-Range of the request, and on the number of the same requests before it,
/// but not on other requests. Concurrent uploads thus get the same faults in every run.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan {
    seed: u64,
    chances: Vec<(ServerFaultKind, f64)>,
    remaining: u64,
    occurrences: HashMap<u64, u64>,
    scripted: Vec<(String, ServerFault)>,
    lies: Vec<Lie>,
    lie_chance: f64,
}

impl FaultPlan {
    /// Creates a plan without faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates a plan of at most `max_faults` faults. For each request the kinds are drawn in order, with their probabilities,
    /// and the first hit applies.
    #[must_use]
    pub fn seeded(seed: u64, chances: &[(ServerFaultKind, f64)], max_faults: u64) -> Self {
        Self {
            seed,
            chances: chances.to_vec(),
            remaining: max_faults,
            ..Self::default()
        }
    }

    /// Creates a plan that falsifies responses to GET and HEAD with this probability, by `lies` in rotation.
    ///
    /// Unlike other draws, the lie of a request depends on the requests before it.
    #[must_use]
    pub fn lying(seed: u64, lies: &[Lie], chance: f64) -> Self {
        Self {
            seed,
            lies: lies.to_vec(),
            lie_chance: chance,
            ..Self::default()
        }
    }

    /// Draws whether to falsify the response, and returns the next lie in rotation.
    fn draw_lie(&mut self, request: &HttpRequest) -> Option<ServerFault> {
        if self.lies.is_empty() || !matches!(request.method, Method::GET | Method::HEAD) {
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

    pub(super) fn script(&mut self, text: &str, fault: ServerFault) {
        self.scripted.push((text.to_owned(), fault));
    }

    pub(super) fn draw(&mut self, request: &HttpRequest) -> Option<ServerFault> {
        let line = request.line();
        let range = request.header("content-range").unwrap_or_default();
        let hit = self
            .scripted
            .iter()
            .position(|(text, _)| range.contains(text) || line.contains(text));
        if let Some(hit) = hit {
            return Some(self.scripted.remove(hit).1);
        }
        if let Some(lie) = self.draw_lie(request) {
            return Some(lie);
        }
        if self.remaining == 0 {
            return None;
        }
        let key = line
            .bytes()
            .chain(range.bytes())
            .fold(self.seed, |hash, byte| mix(hash ^ u64::from(byte)));
        let occurrences = self.occurrences.entry(key).or_default();
        *occurrences += 1;
        let mut rng = StdRng::seed_from_u64(mix(key ^ *occurrences));
        let length = request
            .header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        for &(kind, chance) in &self.chances {
            if rng.random_bool(chance) {
                self.remaining -= 1;
                return Some(kind.draw(&mut rng, length));
            }
        }
        None
    }
}
