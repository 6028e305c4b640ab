//! Names: one value a name, initialised before it is found.

use std::sync::Arc;

use loom::thread;

use super::{ALL, MANY, control, explore};
use crate::Names;
use crate::sync::{Step, UnsafeCell};

struct Value(UnsafeCell<u32>);

// SAFETY: loom checks each access.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    fn new(value: u32) -> Self {
        let made = Self(UnsafeCell::new(0));
        // SAFETY: loom detects concurrent readers.
        made.0.with_mut(|place| unsafe { *place = value });
        made
    }

    fn read(&self) -> u32 {
        // SAFETY: loom detects concurrent writers.
        self.0.with(|place| unsafe { *place })
    }
}

fn get_against_creation() {
    let names = Arc::new(Names::new());
    let reading = thread::spawn({
        let names = Arc::clone(&names);
        move || {
            if let Some(value) = names.get("a") {
                assert_eq!(Value::read(value), 1);
            }
        }
    });
    assert_eq!(names.get_or_insert_with("a", || Value::new(1)).read(), 1);
    reading.join().unwrap();
    assert_eq!(names.get("a").map(Value::read), Some(1));
}

#[test]
fn value_is_initialised_before_it_is_found() {
    explore(ALL, get_against_creation);
}

#[test]
fn control_insert_without_release_races_with_a_get() {
    control(Step::Insert, get_against_creation, "Causality violation");
}

fn growth() {
    let names = Arc::new(Names::new());
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        names.get_or_insert_with(name, || n);
    }
    let entering = thread::spawn({
        let names = Arc::clone(&names);
        move || *names.get_or_insert_with("c", || 10)
    });
    let mine = *names.get_or_insert_with("c", || 20);
    // Four cells hold three: the table grows.
    names.get_or_insert_with("d", || 3);
    assert_eq!(names.get("a"), Some(&0));
    assert_eq!(entering.join().unwrap(), mine, "one value a name");
    assert_eq!(names.get("c"), Some(&mine));
    assert_eq!(names.len(), 4);
}

#[test]
fn concurrent_inserts_in_a_growing_table_make_one_value() {
    explore(MANY, growth);
}
