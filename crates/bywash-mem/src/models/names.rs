//! Names: one value a name, made before it is found.

use std::sync::Arc;

use loom::thread;

use super::{ALL, MANY, control, explore};
use crate::Names;
use crate::sync::{Step, UnsafeCell};

struct Value(UnsafeCell<u32>);

// SAFETY: loom watches each access.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    fn new(value: u32) -> Self {
        let made = Self(UnsafeCell::new(0));
        // SAFETY: loom says whether anyone reads.
        made.0.with_mut(|place| unsafe { *place = value });
        made
    }

    fn read(&self) -> u32 {
        // SAFETY: loom says whether anyone writes.
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
fn a_value_is_made_before_it_is_found() {
    explore(ALL, get_against_creation);
}

#[test]
fn without_the_entrys_release_a_value_is_found_before() {
    control(Step::Enter, get_against_creation, "Causality violation");
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
fn two_creators_and_a_growing_table_make_one_value() {
    explore(MANY, growth);
}
