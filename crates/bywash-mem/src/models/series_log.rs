//! Use of names and the gate by the series engine: a series is named in the log before its first rows of a generation, and a closed
//! generation is complete in the log. The engine's own lock and log are simplified here.

use std::sync::Arc;

use loom::thread;

use super::{MANY, control, explore};
use crate::sync::{Mutex, Step, set_thread_number, skipped};
use crate::{Gate, Names};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    Name { generation: u64 },
    Rows { generation: u64, turn: u32 },
}

/// Number of writes of a generation, as each series counts them.
type Series = Mutex<(u64, u32)>;

struct SeriesModel {
    names: Names<Series>,
    gate: Gate,
    log: Mutex<Vec<Frame>>,
}

impl SeriesModel {
    /// As `Shared::write` of the series engine.
    fn write(&self) {
        let series = self.names.get_or_insert_with("a", || Mutex::new((0, 0)));
        let inside = self.gate.enter();
        let generation = inside.generation();
        let turn = {
            let mut turns = series.lock();
            if turns.0 != generation {
                *turns = (generation, 0);
            }
            let turn = turns.1;
            turns.1 += 1;
            if turn == 0 && !skipped(Step::NameFirst) {
                self.log.lock().push(Frame::Name { generation });
            }
            turn
        };
        if turn == 0 && skipped(Step::NameFirst) {
            self.log.lock().push(Frame::Name { generation });
        }
        self.log.lock().push(Frame::Rows { generation, turn });
    }
}

fn two_first_writers_and_a_close() {
    let world = Arc::new(SeriesModel {
        names: Names::new(),
        gate: Gate::new(1),
        log: Mutex::new(Vec::new()),
    });
    let other = thread::spawn({
        let world = Arc::clone(&world);
        move || {
            set_thread_number(1);
            world.write();
        }
    });
    world.write();
    let closed = world.gate.close();
    let then = world.log.lock().clone();
    other.join().unwrap();
    let log = world.log.lock().clone();
    let of = |frame: &Frame| match *frame {
        Frame::Name { generation } | Frame::Rows { generation, .. } => generation,
    };
    assert!(
        log[then.len()..].iter().all(|frame| of(frame) != closed),
        "a closed generation is complete in the log"
    );
    for generation in [closed, closed + 1] {
        let frames: Vec<Frame> = log
            .iter()
            .copied()
            .filter(|frame| of(frame) == generation)
            .collect();
        if let Some(first) = frames.first() {
            assert_eq!(*first, Frame::Name { generation }, "the name is first");
        }
        let mut turns: Vec<u32> = frames
            .iter()
            .filter_map(|frame| match *frame {
                Frame::Rows { turn, .. } => Some(turn),
                Frame::Name { .. } => None,
            })
            .collect();
        turns.sort_unstable();
        assert!(
            turns.iter().copied().eq(0..turns.len() as u32),
            "turns have no gap"
        );
    }
    assert_eq!(world.names.len(), 1);
}

#[test]
fn series_name_is_logged_before_its_first_rows() {
    explore(MANY, two_first_writers_and_a_close);
}

#[test]
fn control_name_logged_after_unlock_follows_rows() {
    control(
        Step::NameFirst,
        two_first_writers_and_a_close,
        "the name is first",
    );
}
