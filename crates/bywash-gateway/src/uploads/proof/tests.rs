use s3s::dto::ETag;

use super::*;

const MARK: Option<&str> = Some("mark");
/// MD5 of nothing, and of `x`.
const MD5S: [&str; 2] = [
    "d41d8cd98f00b204e9800998ecf8427e",
    "9dd4e461268c8034f5c8564e155c67a6",
];

fn named(tags: &[&str], s3: bool) -> NamedParts {
    let part = |(number, tag): (i32, &&str)| CompletedPart {
        part_number: Some(number),
        e_tag: Some(ETag::Strong((*tag).to_owned())),
        ..Default::default()
    };
    let parts: Vec<_> = (1..).zip(tags).map(part).collect();
    NamedParts::new(&parts, s3)
}

fn object<'a>(mark: Option<&'a str>, e_tag: &'a str) -> Candidate<'a> {
    Candidate {
        mark,
        e_tag: Some(e_tag),
    }
}

fn open(attempts: &[&NamedParts], since_begin: bool) -> Result<RecordedState, SharedUploadsError> {
    let attempts = attempts.iter().map(|list| list.digest.clone()).collect();
    Ok(RecordedState::Open {
        attempts,
        since_begin,
    })
}

fn unavailable() -> Result<RecordedState, SharedUploadsError> {
    Err(SharedUploadsError::Unavailable("down".to_owned()))
}

#[test]
fn etag_of_the_parts_proves_their_list_without_a_record() {
    let (list, other) = (named(&MD5S, true), named(&MD5S[..1], true));
    let e_tag = format!(
        "\"{}\"",
        e_tag_of_parts(MD5S.iter().map(|md5| Some(*md5))).unwrap()
    );
    let found = object(MARK, &e_tag);
    assert!(list.needs_no_record());
    assert_eq!(list.judge(MARK, &found, &unavailable()), Verdict::Result);
    assert_eq!(
        other.judge(MARK, &found, &unavailable()),
        Verdict::Unavailable
    );
    let unknown = Ok(RecordedState::Unknown);
    assert_eq!(other.judge(MARK, &found, &unknown), Verdict::Unproven);
    // Sent alone as far as is recorded, which it need not be.
    let sole = open(&[&other], true);
    assert_eq!(other.judge(MARK, &found, &sole), Verdict::Unproven);
    let by_other = Ok(RecordedState::Completed(list.digest.clone()));
    assert_eq!(other.judge(MARK, &found, &by_other), Verdict::OtherList);
}

#[test]
fn object_without_the_mark_proves_nothing() {
    let list = named(&MD5S, true);
    let e_tag = e_tag_of_parts(MD5S.iter().map(|md5| Some(*md5))).unwrap();
    let by_it = Ok(RecordedState::Completed(list.digest.clone()));
    for (mark, found) in [
        (MARK, None),
        (MARK, Some("other")),
        (None, None),
        (None, MARK),
    ] {
        let verdict = list.judge(mark, &object(found, &e_tag), &by_it);
        assert_eq!(verdict, Verdict::OtherObject, "{mark:?} {found:?}");
    }
}

#[test]
fn opaque_etags_are_proven_by_records_only() {
    let (list, other) = (named(&["a", "b"], true), named(&["a", "c"], true));
    assert!(!list.needs_no_record());
    assert!(!named(&MD5S, false).needs_no_record(), "not S3");
    let judge = |recorded| list.judge(MARK, &object(MARK, "opaque-2"), &recorded);
    assert_eq!(judge(open(&[&list], true)), Verdict::Result);
    assert_eq!(judge(open(&[&list, &other], true)), Verdict::Unproven);
    assert_eq!(judge(open(&[&other], true)), Verdict::OtherList);
    assert_eq!(judge(open(&[], true)), Verdict::Unproven);
    // Attempts before the record was made are not in it.
    assert_eq!(judge(open(&[&list], false)), Verdict::Unproven);
    assert_eq!(judge(Ok(RecordedState::Unknown)), Verdict::Unproven);
    assert_eq!(judge(unavailable()), Verdict::Unavailable);
    let completed = |list: &NamedParts| Ok(RecordedState::Completed(list.digest.clone()));
    assert_eq!(judge(completed(&list)), Verdict::Result);
    assert_eq!(judge(completed(&other)), Verdict::OtherList);
}

#[test]
fn digest_of_a_list_ignores_quotes_only() {
    let digest = |tags: &[&str]| named(tags, true).digest;
    assert_eq!(digest(&["a"]), digest(&["\"a\""]));
    assert_ne!(digest(&["a", "b"]), digest(&["ab"]));
    assert_ne!(digest(&["a", "b"]), digest(&["b", "a"]));
}
