#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

#[test]
fn before_sorts_below_all_keys_with_the_prefix() {
    for prefix in ["a", "dir/fo", "x/0", "\u{fc}"] {
        let before = before(prefix);
        assert!(before.as_str() < prefix, "{prefix:?}");
        for shorter in prefix.char_indices().map(|(at, _)| &prefix[..at]) {
            assert!(before.as_str() > shorter, "{prefix:?} {shorter:?}");
        }
    }
    assert_eq!(before(""), "");
    assert_eq!(before("\u{e000}"), format!("\u{d7ff}{LAST}"));
    assert_eq!(before("a "), format!("a\n{LAST}"), "XML has it");
    assert_eq!(before("\t"), "", "there is no character before it");
}

#[test]
fn marker_that_is_a_common_prefix_skips_all_below_it() {
    let scope = ListScope {
        prefix: "a/",
        delimiter: "/",
    };
    assert_eq!(
        ListPosition::marker("a/b/", &scope),
        ListPosition::Prefix("a/b/".to_owned())
    );
    assert_eq!(
        ListPosition::marker("a/b/c", &scope),
        ListPosition::Key("a/b/c".to_owned())
    );
    assert_eq!(
        ListPosition::marker("a/b", &scope),
        ListPosition::Key("a/b".to_owned())
    );
    assert_eq!(
        ListPosition::marker("b/", &scope),
        ListPosition::Key("b/".to_owned())
    );
    let after = ListPosition::Prefix("a/b/".to_owned());
    assert!(!after.admits("a/b/c") && after.admits("a/b0") && !after.admits("a/b"));
}
