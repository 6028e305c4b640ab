//! What the fuzzers demand of the store's answers.

use super::*;

/// Any answer to each kind of request: what it means never goes beyond what was sent.
pub(crate) fn answer(answer: &Answer) {
    const LENGTH: u64 = 1000;
    let finish = |tail| Step::Finish {
        tail,
        length: LENGTH,
        crc32c: 1,
    };
    let steps = [
        Step::Append(100..200),
        finish(None),
        finish(Some(500..LENGTH)),
        Step::Query,
        Step::Cancel,
    ];
    for step in steps {
        match (&step, meaning(&step, answer)) {
            (Step::Append(range), Meaning::Keeps(kept)) => assert!(kept <= range.end),
            (Step::Finish { length, .. }, Meaning::Keeps(kept)) => assert!(kept <= *length),
            (Step::Finish { length, .. }, Meaning::Finished(finished)) => {
                assert!(answer.status == 200 || answer.status == 201);
                assert!(finished.length.is_none_or(|stored| stored == *length));
            }
            (Step::Append(_) | Step::Cancel, Meaning::Finished(_)) => {
                panic!("{step:?} cannot finish an object")
            }
            _ => {}
        }
    }
    reason(answer);
    let endpoint = Url::parse("http://127.0.0.1:1/").expect("a plain address");
    started(answer, 201, &endpoint);
}
