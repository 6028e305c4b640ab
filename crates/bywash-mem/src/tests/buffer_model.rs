//! Random operations on a write-at buffer against a plain model.

use std::ops::Range;

use proptest::prelude::*;

use super::pool;
use crate::{FreezeError, Overlap, Share, WriteAtBuffer, WriteAtError, WriteAtOptions, WriteClaim};

const PAGE: u64 = 4096;
const LIMIT: u64 = 3 * PAGE + 100;
/// Cases a property; Miri runs some thousand times slower.
const CASES: u32 = if cfg!(miri) { 2 } else { 128 };
/// Steps of a case; each reads every byte.
const STEPS: usize = if cfg!(miri) { 6 } else { 60 };

#[derive(Debug, Clone)]
enum Step {
    Write(u64, usize),
    Read(u64, usize),
    Claim(Range<u64>),
    Fill(prop::sample::Index, usize),
    Drop(prop::sample::Index),
    Freeze(u64),
    Repair,
}

fn step() -> impl Strategy<Value = Step> {
    let offset = || 0..LIMIT + 10;
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (offset(), 0..4500usize).prop_map(|(at, len)| Step::Write(at, len)),
        3 => (offset(), 0..6000usize).prop_map(|(at, len)| Step::Read(at, len)),
        4 => (offset(), offset()).prop_map(|(a, b)| Step::Claim(a.min(b)..a.max(b))),
        4 => (index(), 0..4500usize).prop_map(|(claim, len)| Step::Fill(claim, len)),
        2 => index().prop_map(Step::Drop),
        1 => (0..LIMIT).prop_map(Step::Freeze),
        1 => Just(Step::Repair),
    ]
}

/// The plain model: each byte is written or not, and claimed or not.
struct Plain {
    bytes: Vec<Option<u8>>,
    claimed: Vec<bool>,
}

impl Plain {
    /// Maximal runs of a range where `is` holds.
    fn runs(range: Range<u64>, is: impl Fn(usize) -> bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for at in range.filter(|&at| is(at as usize)) {
            match runs.last_mut() {
                Some(last) if last.end == at => last.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    fn written(&self) -> Vec<Range<u64>> {
        Self::runs(0..LIMIT, |at| self.bytes[at].is_some())
    }

    fn holes(&self, len: u64) -> Vec<Range<u64>> {
        Self::runs(0..len, |at| self.bytes[at].is_none())
    }

    /// Claimed and still to be written.
    fn in_flight(&self, range: Range<u64>) -> bool {
        let missing = |at: u64| self.claimed[at as usize] && self.bytes[at as usize].is_none();
        range.into_iter().any(missing)
    }

    fn free(&self, range: Range<u64>) -> Option<Range<u64>> {
        let free = |at: usize| self.bytes[at].is_none() && !self.claimed[at];
        Self::runs(range, free).into_iter().next()
    }

    fn size(&self) -> u64 {
        self.written().last().map_or(0, |last| last.end)
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, ()> {
        let rest = self.bytes.get(at as usize..).unwrap_or(&[]);
        let found: Vec<u8> = rest.iter().take(len).map_while(|&byte| byte).collect();
        if found.is_empty() && len > 0 && at < self.size() {
            return Err(());
        }
        Ok(found)
    }
}

struct ModelBuffer {
    buffer: WriteAtBuffer,
    plain: Plain,
    claims: Vec<WriteClaim>,
    /// Identifies each write by its bytes.
    stamp: u8,
}

impl ModelBuffer {
    fn write(&mut self, at: u64, len: usize) {
        let bytes = vec![self.stamp; len];
        let end = at + len as u64;
        let result = self.buffer.write_at(at, &bytes);
        if len == 0 {
            assert_eq!(result.unwrap(), 0);
        } else if end > LIMIT {
            assert!(matches!(result, Err(WriteAtError::Offset { .. })));
        } else if self.plain.in_flight(at..end) {
            assert!(matches!(result, Err(WriteAtError::InFlight { .. })));
        } else {
            assert_eq!(result.unwrap(), len);
            for byte in &mut self.plain.bytes[at as usize..end as usize] {
                byte.get_or_insert(self.stamp);
            }
        }
    }

    fn claim(&mut self, range: Range<u64>) {
        let result = self.buffer.claim(range.clone());
        if range.end > LIMIT {
            assert!(matches!(result, Err(WriteAtError::Offset { .. })));
            return;
        }
        match (self.plain.free(range.clone()), result) {
            (Some(free), Ok(Some(claim))) => {
                assert_eq!(claim.range(), free);
                self.plain.claimed[free.start as usize..free.end as usize].fill(true);
                self.claims.push(claim);
            }
            (None, Ok(None)) => assert!(!self.plain.in_flight(range)),
            (None, Err(WriteAtError::InFlight { .. })) => assert!(self.plain.in_flight(range)),
            other => panic!("{other:?}"),
        }
    }

    fn fill(&mut self, claim: usize, len: usize) {
        let claim = &mut self.claims[claim];
        let at = (claim.range().end - claim.remaining()) as usize;
        let n = claim.write(&vec![self.stamp; len]);
        assert_eq!(n as u64, (len as u64).min(claim.range().end - at as u64));
        self.plain.bytes[at..at + n].fill(Some(self.stamp));
        if claim.remaining() == 0 {
            let range = claim.range();
            self.plain.claimed[range.start as usize..range.end as usize].fill(false);
        }
    }

    fn drop_claim(&mut self, claim: usize) {
        let range = self.claims.swap_remove(claim).range();
        self.plain.claimed[range.start as usize..range.end as usize].fill(false);
    }

    /// Returns whether the buffer is closed now.
    fn freeze(&mut self, len: u64) -> bool {
        let (size, holes) = (self.plain.size(), self.plain.holes(len));
        match self.buffer.freeze(len) {
            Ok(segments) => {
                assert!(size == len && holes.is_empty() && !self.plain.claimed.contains(&true));
                let bytes: Vec<u8> = self.plain.bytes[..len as usize]
                    .iter()
                    .map(|byte| byte.unwrap())
                    .collect();
                assert_eq!(segments.into_contiguous(), bytes);
                return true;
            }
            Err(FreezeError::TooLong { .. }) => assert!(size > len),
            Err(FreezeError::Holes(found)) => assert_eq!(found, holes),
            Err(FreezeError::InFlight { .. }) => assert!(self.plain.claimed.contains(&true)),
            Err(other) => panic!("{other}"),
        }
        false
    }

    fn step(&mut self, step: Step) -> bool {
        self.stamp = self.stamp.wrapping_add(1);
        match step {
            Step::Write(at, len) => self.write(at, len),
            Step::Read(at, len) => {
                let mut into = vec![0; len];
                let result = self.buffer.read_at(at, &mut into);
                match self.plain.read(at, len) {
                    Ok(bytes) => assert_eq!(into[..result.unwrap()], bytes),
                    Err(()) => assert!(matches!(result, Err(WriteAtError::Hole { .. }))),
                }
            }
            Step::Claim(range) => self.claim(range),
            Step::Fill(claim, len) if !self.claims.is_empty() => {
                self.fill(claim.index(self.claims.len()), len);
            }
            Step::Drop(claim) if !self.claims.is_empty() => {
                self.drop_claim(claim.index(self.claims.len()));
            }
            Step::Fill(..) | Step::Drop(_) => {}
            Step::Freeze(len) => return self.freeze(len),
            Step::Repair => {
                while !self.claims.is_empty() {
                    self.drop_claim(0);
                }
                let size = self.plain.size();
                for hole in self.plain.holes(size) {
                    self.write(hole.start, (hole.end - hole.start) as usize);
                }
                return self.freeze(size);
            }
        }
        let (buffer, plain) = (&self.buffer, &self.plain);
        assert_eq!(
            (buffer.written(), buffer.size()),
            (plain.written(), plain.size())
        );
        let prefix = plain.bytes.iter().take_while(|byte| byte.is_some()).count();
        assert_eq!(buffer.contiguous(), prefix as u64);
        false
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_operations_match_a_byte_array(
        hint in 0..2 * LIMIT,
        shift in 0..3u32,
        steps in prop::collection::vec(step(), 1..STEPS),
    ) {
        let pool = pool(1 << 20);
        let options = WriteAtOptions {
            size_hint: hint,
            limit: LIMIT,
            frame_len: Some((PAGE as usize) << shift),
            overlap: Overlap::Refuse,
            share: Share::Download,
        };
        let mut world = ModelBuffer {
            buffer: WriteAtBuffer::new(pool.budget(), options).unwrap(),
            plain: Plain { bytes: vec![None; LIMIT as usize], claimed: vec![false; LIMIT as usize] },
            claims: Vec::new(),
            stamp: 0,
        };
        for step in steps {
            if world.step(step) {
                break;
            }
        }
        drop(world);
        assert_eq!(pool.budget().held(Share::Download), 0);
    }
}
