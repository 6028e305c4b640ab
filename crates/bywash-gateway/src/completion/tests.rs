use chrono::Utc;

use super::*;
use crate::meta::mark_upload;

fn part(number: u16, e_tag: &str) -> UploadedPart {
    UploadedPart {
        number,
        e_tag: e_tag.to_owned(),
    }
}

fn object(mark: Option<&str>, size: u64, e_tag: &str) -> (ObjectMeta, Attributes) {
    let mut attributes = Attributes::new();
    if let Some(mark) = mark {
        assert!(mark_upload(&mut attributes, mark));
    }
    let meta = ObjectMeta {
        location: Path::from("key"),
        last_modified: Utc::now(),
        size,
        e_tag: Some(e_tag.to_owned()),
        version: None,
    };
    (meta, attributes)
}

#[test]
fn only_the_object_of_this_completion_matches_its_token() {
    let mut upload = Upload::new(Utc::now(), None, false, Some("mark".to_owned()));
    let parts = [part(1, "a"), part(3, "b")];
    let token = CompletionToken::new(&upload, &parts, 7);
    assert!(!token.again);
    let digest = "0123456789abcdef0123456789abcdef";
    let of_two = format!("\"{digest}-2\"");
    let of_three = format!("\"{digest}-3\"");
    for (mark, size, e_tag, expected) in [
        (Some("mark"), 7, "any", true),
        (Some("mark"), 7, of_two.as_str(), true),
        (Some("mark"), 7, of_three.as_str(), false),
        (Some("mark"), 8, "any", false),
        (Some("other"), 7, "any", false),
        (None, 7, "any", false),
    ] {
        let (meta, attributes) = object(mark, size, e_tag);
        assert_eq!(
            token.holds(&meta, &attributes),
            expected,
            "{mark:?} {size} {e_tag}"
        );
    }

    let (meta, attributes) = object(Some("mark"), 7, "any");
    upload.attempts.insert(attempt(&parts));
    let token = CompletionToken::new(&upload, &parts, 7);
    assert!(token.again && token.holds(&meta, &attributes));
    upload.attempts.insert(attempt(&[part(1, "a")]));
    let token = CompletionToken::new(&upload, &parts, 7);
    assert!(
        !token.holds(&meta, &attributes),
        "it may be of the other list"
    );
    let unmarked = Upload::new(Utc::now(), None, false, None);
    let (meta, attributes) = object(None, 7, "any");
    assert!(!CompletionToken::new(&unmarked, &parts, 7).holds(&meta, &attributes));
}

#[test]
fn list_of_parts_has_one_name() {
    let two = |first, second| attempt(&[part(1, first), part(2, second)]);
    assert_eq!(two("a", "b"), two("a", "b"));
    for other in [
        two("b", "a"),
        two("ab", ""),
        attempt(&[part(1, "a"), part(3, "b")]),
        attempt(&[part(1, "a")]),
    ] {
        assert_ne!(two("a", "b"), other);
    }
}
