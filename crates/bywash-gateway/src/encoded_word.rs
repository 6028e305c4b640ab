//! Encoded words (RFC 2047), the form in which S3 returns user metadata that is not ASCII.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const PREFIX: &str = "=?UTF-8?B?";
const SUFFIX: &str = "?=";
/// Bytes of text in one word: with base64 and its frame it has at most 75 characters, as the RFC demands.
const WORD_BYTES: usize = 45;

/// Returns a text that is not ASCII as encoded words with spaces between them, and another one unchanged.
pub(crate) fn encode(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let (mut words, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        // Each word is to be decoded by itself, so it has whole characters.
        let (word, after) = rest.split_at(rest.floor_char_boundary(WORD_BYTES));
        words.push(format!("{PREFIX}{}{SUFFIX}", BASE64_STANDARD.encode(word)));
        rest = after;
    }
    Cow::Owned(words.join(" "))
}

/// Decodes a value that consists of words as [`encode`] writes them. Others are returned unchanged.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    let word = |word: &str| {
        let base64 = word.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        String::from_utf8(BASE64_STANDARD.decode(base64).ok()?).ok()
    };
    match text.split(' ').map(word).collect::<Option<String>>() {
        Some(decoded) => Cow::Owned(decoded),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn words_are_short_and_have_whole_characters() {
        assert_eq!(
            encode("J\u{fc}rgen \u{2713}"),
            "=?UTF-8?B?SsO8cmdlbiDinJM=?="
        );
        for length in 1..200 {
            for character in ['\u{fc}', '\u{2713}', '\u{1f600}'] {
                let text = format!("a{}", character.to_string().repeat(length));
                let encoded = encode(&text);
                assert!(encoded.split(' ').all(|word| word.len() <= 75), "{encoded}");
                assert_eq!(decode(&encoded), text);
            }
        }
    }

    #[test]
    fn what_is_no_encoded_word_is_not_decoded() {
        for text in [
            "",
            "plain text",
            "=?UTF-8?B?!?=",
            "=?UTF-8?B?/w==?=",
            "=?UTF-8?Q?J=FC?=",
            "=?UTF-8?B?SsO8?= and more",
        ] {
            assert_eq!(decode(text), text);
        }
    }

    #[test]
    fn ascii_is_returned_unchanged() {
        for text in ["", "plain", "=?UTF-8?B?SsO8cmdlbg==?=", "a=?b"] {
            assert!(matches!(encode(text), Cow::Borrowed(same) if same == text));
        }
    }
}
