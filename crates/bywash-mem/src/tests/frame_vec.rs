//! Vectors in parts of frames, compared with a plain `Vec`.

use std::sync::Arc;

use proptest::prelude::*;

use crate::{BlockPool, FrameVec, PoolConfig, Share, SharedFrame};

fn pool() -> Arc<BlockPool> {
    BlockPool::new(PoolConfig::new(1 << 20)).unwrap()
}

fn shared(pool: &BlockPool, bytes: usize) -> SharedFrame {
    SharedFrame::new(pool.budget().try_frame(Share::Upload, bytes).unwrap())
}

#[test]
fn vectors_of_a_frame_are_disjoint_and_the_last_one_returns_it() {
    let pool = pool();
    let mut frame = shared(&pool, 4096);
    let held = pool.budget().held(Share::Upload);
    assert_eq!(held, 4096);
    let mut vecs = Vec::new();
    while let Some(vec) = frame.vec::<u64>(100) {
        vecs.push(vec);
    }
    assert_eq!(vecs.len(), 5);
    assert!(frame.vec::<u64>(usize::MAX / 4).is_none());
    drop(frame);
    for (number, vec) in vecs.iter_mut().enumerate() {
        assert!(vec.is_in_frame() && vec.is_empty() && vec.capacity() == 100);
        vec.extend_within_capacity(std::iter::repeat(number as u64));
    }
    for (number, vec) in vecs.iter().enumerate() {
        assert_eq!(**vec, [number as u64; 100]);
    }
    let last = vecs.pop();
    drop(vecs);
    assert_eq!(pool.budget().held(Share::Upload), 4096);
    drop(last);
    assert_eq!(pool.budget().held(Share::Upload), 0);
}

#[test]
fn vector_of_a_frame_that_grows_moves_to_the_heap() {
    let pool = pool();
    let mut vec = shared(&pool, 4096).vec::<u32>(3).unwrap();
    vec.extend_within_capacity([1, 2, 3, 4].into_iter());
    assert_eq!(*vec, [1, 2, 3]);
    vec.reserve_exact(2);
    assert!(!vec.is_in_frame());
    vec.push(4);
    assert_eq!(*vec, [1, 2, 3, 4]);
    assert_eq!(pool.budget().held(Share::Upload), 0);
}

#[test]
#[should_panic(expected = "a full vector")]
fn push_into_a_full_vector_panics() {
    let mut vec = FrameVec::with_capacity(1);
    vec.push(1);
    vec.push(2);
}

#[test]
fn threads_write_their_parts_of_one_frame() {
    let pool = pool();
    let mut frame = shared(&pool, 4096);
    let vecs: Vec<FrameVec<u64>> = std::iter::from_fn(|| frame.vec(128)).collect();
    std::thread::scope(|scope| {
        for (number, mut vec) in vecs.into_iter().enumerate() {
            scope.spawn(move || {
                for n in 0..128 {
                    vec.push((number * 1000 + n) as u64);
                }
                assert!(
                    vec.iter()
                        .copied()
                        .eq((0..128).map(|n| (number * 1000 + n) as u64))
                );
            });
        }
    });
}

#[derive(Debug, Clone)]
enum Step {
    Push(u32),
    Insert(usize, u32),
    Truncate(usize),
    Reserve(usize),
    Extend(Vec<u32>),
    Clone,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u32>().prop_map(Step::Push),
        (0..40_usize, any::<u32>()).prop_map(|(at, value)| Step::Insert(at, value)),
        (0..40_usize).prop_map(Step::Truncate),
        (0..20_usize).prop_map(Step::Reserve),
        prop::collection::vec(any::<u32>(), 0..10).prop_map(Step::Extend),
        Just(Step::Clone),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
    #[test]
    fn vector_behaves_as_a_plain_one(
        in_frame in any::<bool>(),
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let pool = pool();
        let mut vec = if in_frame {
            shared(&pool, 4096).vec(16).unwrap()
        } else {
            FrameVec::with_capacity(16)
        };
        let mut model: Vec<u32> = Vec::new();
        for step in steps {
            let room = vec.capacity() - vec.len();
            match step {
                Step::Push(value) if room > 0 => {
                    vec.push(value);
                    model.push(value);
                }
                Step::Insert(at, value) if room > 0 => {
                    let at = at.min(model.len());
                    vec.insert(at, value);
                    model.insert(at, value);
                }
                Step::Push(_) | Step::Insert(..) => {}
                Step::Truncate(len) => {
                    vec.truncate(len);
                    model.truncate(len);
                }
                Step::Reserve(more) => {
                    vec.reserve_exact(more);
                    prop_assert!(vec.capacity() >= model.len() + more);
                }
                Step::Extend(values) => {
                    vec.extend_within_capacity(values.iter().copied());
                    model.extend(values.iter().take(room));
                }
                Step::Clone => {
                    let copy = vec.clone();
                    prop_assert!(!copy.is_in_frame());
                    prop_assert_eq!(&copy[..], &model[..]);
                }
            }
            prop_assert_eq!(&vec[..], &model[..]);
        }
    }
}
