#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::Names;

const MIRI: bool = cfg!(miri);

#[test]
fn name_is_inserted_once() {
    let names = Names::new();
    assert!(names.is_empty());
    assert_eq!(names.get("a"), None);
    assert_eq!(*names.get_or_insert_with("a", || 1), 1);
    assert_eq!(
        *names.get_or_insert_with("a", || unreachable!("it is there")),
        1
    );
    assert_eq!(names.get("a"), Some(&1));
    assert_eq!(names.get("A"), None);
    assert_eq!(names.len(), 1);
}

#[test]
fn any_text_can_be_a_name() {
    let long = |len: usize| "é".repeat(len / 2);
    let texts = [
        String::new(),
        "\0".into(),
        "\0\0".into(),
        " ".into(),
        "cpu.総和{host=\"a\"}".into(),
        long(64 << 10),
        long((64 << 10) + 2),
        // The longest next to its value, and one more byte.
        "x".repeat(super::SHORT),
        "x".repeat(super::SHORT + 1),
        long(if MIRI { 70 << 10 } else { 1 << 20 }),
    ];
    let names = Names::new();
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(names.get(text), None);
        names.get_or_insert_with(text, || at);
    }
    for (at, text) in texts.iter().enumerate() {
        assert_eq!(names.get(text), Some(&at));
        assert_eq!(names.by_id(at as u32), Some((text.as_str(), &at)));
    }
    assert_eq!(names.by_id(texts.len() as u32), None);
    assert_eq!(names.by_id(u32::MAX), None);
}

#[test]
fn pairs_with_equal_concatenation_are_distinct() {
    let long = "x".repeat(100);
    let texts = [
        "",
        "a",
        "ab",
        "b",
        "/",
        "a/b",
        "\0",
        "日本",
        &long,
        &long[1..],
        &long[..super::SHORT],
    ];
    let names = Names::new();
    let pairs = || {
        texts
            .iter()
            .flat_map(|first| texts.map(|second| (*first, second)))
    };
    for (at, (first, second)) in (0..).zip(pairs()) {
        let early = names.start_lookup(first, second);
        assert_eq!(
            names.finish_lookup(early, first, second),
            None,
            "{first} {second}"
        );
        assert_eq!(*names.get_or_insert_with_id(first, second, |id| id), at);
        assert_eq!(
            names.finish_lookup(early, first, second),
            Some(at),
            "entered since it began"
        );
    }
    for (at, (first, second)) in (0..).zip(pairs()) {
        assert_eq!(
            names.finish_lookup(names.start_lookup(first, second), first, second),
            Some(at)
        );
        assert_eq!(names.by_id(at), Some((&*[first, second].concat(), &at)));
    }
    assert_eq!(names.get("ab"), Some(&2), "nothing, then all of it");
}

#[test]
fn panic_in_init_inserts_nothing() {
    let names = Names::new();
    names.get_or_insert_with("a", || 0);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        names.get_or_insert_with_id("", "b", |id| panic!("no value for {id}"));
    }));
    assert!(panicked.is_err());
    assert_eq!((names.get("b"), names.len()), (None, 1));
    assert_eq!(*names.get_or_insert_with_id("", "b", |id| id), 1);
    assert_eq!(names.iter().collect::<Vec<_>>(), [("a", &0), ("b", &1)]);
}

#[test]
fn values_are_dropped_with_the_map() {
    struct Counted<'a>(&'a AtomicUsize);
    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let dropped = AtomicUsize::new(0);
    let names = Names::new();
    let count = if MIRI { 100 } else { 1000 };
    for n in 0..count {
        for _ in 0..2 {
            names.get_or_insert_with(&n.to_string(), || Counted(&dropped));
        }
    }
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(names);
    assert_eq!(dropped.load(Ordering::Relaxed), count);
}

#[test]
fn iteration_includes_names_inserted_meanwhile() {
    let names = Names::new();
    for n in 0..3 {
        names.get_or_insert_with(&n.to_string(), || n);
    }
    let last = if MIRI { 20 } else { 200 };
    let mut listed = Vec::new();
    for (name, &n) in names.iter() {
        assert_eq!(name, n.to_string());
        if n < last {
            names.get_or_insert_with(&(n + 3).to_string(), || n + 3);
        }
        listed.push(n);
    }
    assert_eq!(listed, (0..last + 3).collect::<Vec<_>>());
    assert_eq!(names.len(), last + 3);
    assert!(format!("{names:?}").starts_with("{\"0\": 0, "));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if MIRI { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_operations_match_a_hash_map(
        texts in prop::collection::vec("[a-c]{0,3}|.{0,40}", 0..if MIRI { 10 } else { 300 })
    ) {
        let names = Names::new();
        let mut plain: HashMap<&str, u32> = HashMap::new();
        let mut order = Vec::new();
        for text in &texts {
            prop_assert_eq!(names.get(text), plain.get(text.as_str()));
            let next = plain.len() as u32;
            let id = *plain.entry(text).or_insert_with(|| {
                order.push(text.as_str());
                next
            });
            prop_assert_eq!(*names.get_or_insert_with_id("", text, |id| id), id);
            prop_assert_eq!(names.len(), plain.len());
        }
        let listed: Vec<_> = names.iter().map(|(name, _)| name).collect();
        prop_assert_eq!(listed, order);
    }
}

/// From Catena: 64 threads get or create the same names, and names of their own, while others iterate.
#[test]
fn sixty_four_threads_get_one_value_a_name() {
    const THREADS: usize = if MIRI { 4 } else { 64 };
    let (shared, own) = if MIRI { (20, 10) } else { (500, 200) };
    let names = Names::new();
    let made = AtomicUsize::new(0);
    let start = Barrier::new(THREADS);
    let work = |thread: usize| {
        start.wait();
        let mut seen = Vec::new();
        for n in 0..shared.max(own) {
            // Each thread starts elsewhere, so that every name is some thread's first.
            let common = (n + thread * 7) % shared;
            let mine = format!("thread {thread} name {}", n % own);
            for name in [format!("shared {common}"), mine] {
                let value = names.get_or_insert_with_id("", &name, |id| {
                    made.fetch_add(1, Ordering::Relaxed);
                    (id, name.clone())
                });
                assert_eq!(value.1, name);
                seen.push(std::ptr::from_ref(value) as usize);
            }
            if n % 100 == 0 {
                let listed: Vec<_> = names.iter().collect();
                assert!(listed.len() <= names.len());
                for (id, (name, value)) in listed.into_iter().enumerate() {
                    assert_eq!((value.0 as usize, value.1.as_str()), (id, name));
                }
            }
        }
        seen.into_iter().collect::<HashSet<_>>()
    };
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let each = threads.into_iter().map(|thread| thread.join().unwrap());
        each.collect::<Vec<_>>()
    });
    let count = shared + THREADS * own;
    assert_eq!(made.load(Ordering::Relaxed), count, "one object each");
    assert_eq!(names.len(), count);
    let all: HashSet<usize> = seen.iter().flatten().copied().collect();
    assert_eq!(all.len(), count, "and everyone saw that one");
    assert!(seen.iter().all(|seen| seen.len() == shared + own));
}

#[test]
fn names_are_inserted_at_ids_with_gaps() {
    let names = Names::new();
    let ids: &[u32] = if MIRI {
        &[70, 3, 300]
    } else {
        &[70_000, 3, 1_000_000, 0, 69_999]
    };
    for id in ids {
        let (first, second) = (format!("{id}"), "x".repeat(50));
        assert_eq!(*names.insert_at(*id, &first, &second, *id), *id);
    }
    for id in ids {
        let (first, second) = (format!("{id}"), "x".repeat(50));
        let lookup = names.start_lookup(&first, &second);
        assert_eq!(names.finish_lookup(lookup, &first, &second), Some(*id));
        assert_eq!(names.value(*id), Some(id));
        assert_eq!(names.value(*id + 1).is_some(), ids.contains(&(id + 1)));
    }
    assert_eq!(names.len() as u32, ids.iter().max().unwrap() + 1);
    assert_eq!(names.value(u32::MAX), None);
    let twice = [(ids[0], "other"), (7, "3")];
    for (id, first) in twice {
        let second = if id == 7 {
            "x".repeat(50)
        } else {
            String::new()
        };
        let inserted = AssertUnwindSafe(|| *names.insert_at(id, first, &second, id));
        assert!(catch_unwind(inserted).is_err(), "{id} {first}");
    }
}

#[test]
fn values_start_with_a_cache_line() {
    let names = Names::new();
    for id in 0..300_u64 {
        let value = names.get_or_insert_with(&format!("{id}"), || [id; 3]);
        assert_eq!(std::ptr::from_ref(value).addr() % 64, 0, "{id}");
    }
}

/// Counts of allocated bytes, from the sizes of their parts.
#[test]
fn bytes_are_those_of_tables_chunks_and_long_names() {
    let names = Names::new();
    let slot = size_of::<super::EntrySlot<u64>>();
    let chunk_pointer = size_of::<std::sync::OnceLock<super::Chunk<u64>>>();
    // Tables of twice the cells each, of 8 bytes; three quarters may be in use.
    let table = |cells: usize| cells * 8 + (cells / 4 * 3).div_ceil(256) * chunk_pointer;
    let tables = |count: u32| (0..count).map(|step| table(64 << step)).sum::<usize>();
    assert_eq!(names.bytes(), tables(1), "empty");
    let long = "x".repeat(100);
    let mut expected = names.bytes();
    let mut insert = |id: u32, first: &str| {
        expected += names.bytes_to_insert(id, first, "");
        names.insert_at(id, first, "", 0);
        assert_eq!(names.bytes(), expected, "after {id}");
    };
    insert(3, "a");
    assert_eq!(names.bytes(), tables(1) + 256 * slot, "one takes a chunk");
    insert(0, &long);
    insert(47, "b");
    insert(48, "c");
    assert_eq!(names.bytes(), tables(2) + 256 * slot + 100);
    insert(300, "d");
    assert_eq!(names.bytes(), tables(4) + 2 * 256 * slot + 100);
    let copy = |ids: &[u32]| names.bytes_of_copy(ids.iter().copied());
    assert_eq!(copy(&[]), tables(1));
    assert_eq!(copy(&[3, 47, 48]), tables(2) + 256 * slot);
    assert_eq!(
        copy(&[0, 3, 48]),
        tables(2) + 256 * slot + 100,
        "a long one"
    );
    assert_eq!(copy(&[3, 256, 300]), tables(4) + 2 * 256 * slot);
    drop(names);

    let names = Names::new();
    let mut expected = names.bytes();
    for id in 0..if MIRI { 60 } else { 3000 } {
        let name = format!("{id}");
        expected += names.bytes_to_insert(id, "", &name);
        names.get_or_insert_with_id("", &name, |_| 0_u64);
        assert_eq!(names.bytes(), expected, "after {id}");
    }
}
