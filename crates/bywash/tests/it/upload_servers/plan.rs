//! The uploads of a seed, and their faults.

use bytes::Bytes;
use bywash_sim::server::ServerFaultKind;
use bywash_support::pattern;
use bywash_support::proof::class;
use bywash_support::swarm::Swarm;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use crate::upload_servers::gcs::UNIT;

/// Uploads of a seed: more than the rare faults that are on, so that some uploads succeed.
const UPLOADS: u64 = 8;
const STALLS: [ServerFaultKind; 2] = [ServerFaultKind::StallAfter, ServerFaultKind::StallResponse];
/// Minimum bytes of a part of the S3 fakes.
pub(super) const PART: usize = 8 * 1024;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Stores any prefix of a chunk; checks the whole object's hash.
    Gcs,
    /// Stores a part whole or not at all; has checksums.
    S3,
    /// Has MD5 only.
    PlainS3,
}

impl Kind {
    /// Returns the unit of chunk lengths.
    fn unit(self) -> usize {
        match self {
            Self::Gcs => UNIT,
            Self::S3 | Self::PlainS3 => PART,
        }
    }
}

/// One random upload.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) seed: u64,
    pub(super) chunk: usize,
    pub(super) length: usize,
    /// Bytes of each write.
    pub(super) writes: Vec<usize>,
    /// Index of the write before which another process takes over.
    pub(super) hand_over: Option<usize>,
    /// The object exists before, and must not.
    pub(super) conflict: bool,
    pub(super) create: bool,
    pub(super) announced: bool,
    pub(super) chances: Vec<(ServerFaultKind, f64)>,
    pub(super) most_faults: u64,
}

/// A class of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Server(ServerFaultKind),
    /// Another process continues the upload.
    TakenOver,
    /// The object exists before, and must not.
    Conflict,
}

impl Class {
    pub(super) fn all() -> Vec<Self> {
        let kinds = ServerFaultKind::TRANSIENT.into_iter();
        let kinds = kinds.chain(ServerFaultKind::PERMANENT).map(Self::Server);
        kinds.chain([Self::TakenOver, Self::Conflict]).collect()
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Server(kind) => class(kind),
            Self::TakenOver => "another process continues".to_owned(),
            Self::Conflict => "object exists".to_owned(),
        }
    }

    /// The kind, if a few uploads of a seed have it: it ends most uploads, or costs real time.
    fn seldom(self) -> Option<ServerFaultKind> {
        let Self::Server(kind) = self else {
            return None;
        };
        (ServerFaultKind::PERMANENT.contains(&kind) || STALLS.contains(&kind)).then_some(kind)
    }
}

impl Plan {
    /// Draws the uploads of a seed.
    pub(super) fn draw_all(kind: Kind, seed: u64) -> Vec<Self> {
        let mut rng = StdRng::seed_from_u64(seed);
        let swarm = Swarm::draw(&mut rng, &Class::all());
        let on = || swarm.on().iter().copied();
        let mut seldom = on().filter_map(Class::seldom);
        let often: Vec<_> = on()
            .filter(|class| class.seldom().is_none())
            .filter_map(|class| match class {
                Class::Server(kind) => Some(kind),
                _ => None,
            })
            .collect();
        let conflict = swarm.has(Class::Conflict).then_some(UPLOADS - 1);
        (0..UPLOADS)
            .map(|nth| {
                let rare = seldom.next();
                let mut plan = Self::draw_for(rare, kind, seed * UPLOADS + nth);
                let rate = |kind: &ServerFaultKind| (*kind, rng.random_range(0.05..0.25));
                plan.chances = often.iter().map(rate).collect();
                plan.chances.shuffle(&mut rng);
                plan.most_faults = rng.random_range(0..12);
                if let Some(kind) = rare {
                    if STALLS.contains(&kind) {
                        plan.chances.clear();
                        plan.most_faults = 2;
                    }
                    plan.chances.insert(0, (kind, rng.random_range(0.4..0.9)));
                    plan.most_faults = plan.most_faults.max(1);
                }
                let hand_over = swarm.has(Class::TakenOver) && rng.random_bool(0.5);
                plan.hand_over = hand_over.then(|| rng.random_range(0..=plan.writes.len()));
                plan.conflict = conflict == Some(nth);
                plan.create |= plan.conflict;
                plan
            })
            .collect()
    }

    /// Draws an upload for a fault that few have: of more than one chunk, as most of these faults are of a session.
    fn draw_for(rare: Option<ServerFaultKind>, kind: Kind, seed: u64) -> Self {
        let plan = Self::draw(kind, seed);
        let is_short = plan.length <= plan.chunk;
        if rare.is_some_and(|kind| kind != ServerFaultKind::FlipBit) && is_short {
            return Self::draw_for(rare, kind, seed + (1 << 40));
        }
        plan
    }

    /// Draws an upload to which nothing happens.
    pub(super) fn draw(kind: Kind, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let chunk = kind.unit() * *[1, 1, 1, 2, 3].choose(&mut rng).unwrap();
        let near =
            |rng: &mut StdRng, edge: usize| (edge + rng.random_range(0..3)).saturating_sub(1);
        let length = match rng.random_range(0..10) {
            0 => near(&mut rng, 0),
            1 | 2 => {
                let edge = chunk * rng.random_range(1..4);
                near(&mut rng, edge)
            }
            3 => chunk * rng.random_range(1..4),
            _ => rng.random_range(0..4 * chunk),
        };
        let largest = *[chunk / 256, chunk / 4, chunk, 3 * chunk]
            .choose(&mut rng)
            .unwrap();
        let (mut writes, mut left) = (Vec::new(), length);
        while left > 0 {
            let write = rng.random_range(1..=largest).min(left);
            writes.push(write);
            left -= write;
        }
        Self {
            kind,
            seed,
            chunk,
            length,
            writes,
            hand_over: None,
            conflict: false,
            create: rng.random_bool(0.3),
            announced: rng.random_bool(0.3),
            chances: Vec::new(),
            most_faults: 0,
        }
    }

    /// Returns whether all faults are such as a client must recover from.
    pub(super) fn passes(&self) -> bool {
        let lasting =
            |(kind, _): &(ServerFaultKind, f64)| ServerFaultKind::PERMANENT.contains(kind);
        !self.chances.iter().any(lasting)
    }

    pub(super) fn key(&self) -> String {
        format!("seed-{}", self.seed)
    }

    pub(super) fn bytes(&self) -> Bytes {
        pattern(self.seed, self.length)
    }
}
