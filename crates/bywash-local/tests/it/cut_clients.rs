//! Clients that are cut off at any byte of their requests or after any reply, drawn by a seed, next to clients that read and keep views while
//! objects are replaced: views keep their bytes, and nothing stays held.
//!
//! To the server a killed process is a connection that ends. `testing/siege/src/cases/local.rs` kills processes.

use bywash_client::message::{Release, Request};
use bywash_client::{Client, View};
use bywash_support::proof::{Proof, Trial};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::door::{Door, RawClient, has, pattern};
use crate::leases::get;

const KEYS: [&str; 3] = ["a", "b", "c"];
/// Most bytes of an object: a few blocks.
const LARGEST: usize = 3 << 20;
const STEPS: u64 = 40;

const IN_REQUEST: &str = "cut within a request";
const AFTER_REPLY: &str = "cut after a reply";
const FALSE_RELEASE: &str = "release of any lease";
const REPLACED: &str = "object replaced under a view";
const CLIENT_GONE: &str = "client gone before its views";
const CLASSES: [&str; 5] = [
    IN_REQUEST,
    AFTER_REPLY,
    FALSE_RELEASE,
    REPLACED,
    CLIENT_GONE,
];

/// A view, with the bytes that it must keep.
struct Kept {
    view: View,
    bytes: Vec<u8>,
}

struct Run<'a, 'b> {
    door: Door,
    rng: StdRng,
    trial: &'a mut Trial<'b>,
    /// Bytes of each object.
    objects: [Vec<u8>; 3],
    client: Client,
    kept: Vec<Kept>,
}

impl<'a, 'b> Run<'a, 'b> {
    fn new(trial: &'a mut Trial<'b>) -> Self {
        let door = Door::new(64 << 20);
        let mut run = Self {
            rng: StdRng::seed_from_u64(trial.seed()),
            client: door.client(),
            door,
            trial,
            objects: Default::default(),
            kept: Vec::new(),
        };
        (0..KEYS.len()).for_each(|key| run.replace(key));
        run
    }

    fn key(&mut self) -> usize {
        self.rng.random_range(0..KEYS.len())
    }

    fn replace(&mut self, key: usize) {
        let length = self.rng.random_range(1..LARGEST);
        let name = format!("{} {}", KEYS[key], self.rng.random::<u32>());
        self.objects[key] = pattern(&name, length);
        self.door.put(KEYS[key], self.objects[key].clone());
        if !self.kept.is_empty() {
            self.trial.fault(REPLACED, 1);
        }
    }

    fn read(&mut self) {
        let key = self.key();
        let length = self.objects[key].len();
        let start = self.rng.random_range(0..length);
        let end = self.rng.random_range(start + 1..=length);
        let bucket = self.client.bucket("data");
        let read = bucket.get_range(KEYS[key], start as u64..end as u64);
        let (view, bytes) = (read.unwrap().bytes, &self.objects[key][start..end]);
        assert!(has(&view, bytes), "{} {start}..{end}", KEYS[key]);
        if self.rng.random_bool(0.5) {
            let bytes = bytes.to_vec();
            self.kept.push(Kept { view, bytes });
        }
    }

    fn look_again(&self) {
        for kept in &self.kept {
            assert!(has(&kept.view, &kept.bytes), "a view changed");
        }
    }

    /// A client without the library, which sends a part of its requests and takes some of its replies.
    fn cut(&mut self) {
        let mut requests = vec![RawClient::hello()];
        let mut replies = 1;
        for number in 2..2 + self.rng.random_range(0..5) {
            let request = match self.rng.random_range(0..4) {
                0 => {
                    self.trial.fault(FALSE_RELEASE, 1);
                    let leases = vec![self.rng.random_range(0..4), self.rng.random()];
                    RawClient::request(0, &Request::Release(Release { leases }))
                }
                _ => {
                    replies += 1;
                    let key = self.key();
                    let end = self.rng.random_range(1..=self.objects[key].len() as u64);
                    RawClient::request(number, &get(KEYS[key], end))
                }
            };
            requests.push(request);
        }
        let mut client = RawClient::connect(&self.door);
        if self.rng.random() {
            self.trial.fault(AFTER_REPLY, 1);
            client.send(&requests.concat());
            for _ in 0..self.rng.random_range(0..=replies) {
                assert!(client.receive().is_some(), "a reply");
            }
        } else {
            self.trial.fault(IN_REQUEST, 1);
            let bytes = requests.concat();
            client.send(&bytes[..self.rng.random_range(0..bytes.len())]);
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..12) {
            0 => {
                let key = self.key();
                self.replace(key);
            }
            1 => {
                if !self.kept.is_empty() {
                    self.trial.fault(CLIENT_GONE, 1);
                }
                self.client = self.door.client();
            }
            2 => self.look_again(),
            3 => self.kept.truncate(self.rng.random_range(0..4)),
            4..8 => self.cut(),
            _ => self.read(),
        }
    }

    fn play(mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.look_again();
        self.trial.operations(STEPS);
        let Self {
            door, client, kept, ..
        } = self;
        drop((client, kept));
        door.wait_idle();
        let bucket = door.bucket();
        for (key, bytes) in KEYS.into_iter().zip(&self.objects) {
            assert!(has(&bucket.get(key).unwrap().bytes, bytes), "{key}");
        }
    }
}

#[test]
fn clients_cut_off_at_random_leave_nothing_and_views_keep_their_bytes() {
    let repeat = "cargo test -p bywash-local --test it clients_cut_off_at_random";
    let proof = Proof::new("local-clients", repeat, 0..6, &CLASSES);
    while let Some(mut trial) = proof.next() {
        Run::new(&mut trial).play();
    }
}
