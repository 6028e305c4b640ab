//! Escaping of foreign text for terminals: keys, bucket names, messages of endpoints.
//!
//! The only place that escapes such text. All output of verbs except data passes here: results ([`crate::output`]),
//! failures, progress bars and logs.

use std::borrow::Cow;
use std::fmt::Write;

use crate::limits::MAX_MESSAGE_CHARS;

/// Whether the character controls a terminal or hides text from people: control characters (C0, DEL, C1), direction
/// marks, zero-width and invisible characters.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns `text` as one terminal line, with unsafe characters as `
/// `, `\t` or `\u{9b}`.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}

/// A message of at most [`MAX_MESSAGE_CHARS`] characters. Further lines are indented by at least
/// two spaces, so that none looks like another message.
pub(crate) fn plain_message(text: &str) -> String {
    let cut = text.char_indices().nth(MAX_MESSAGE_CHARS);
    let shown = cut.map_or(text, |(end, _)| &text[..end]);
    let mut message = String::with_capacity(shown.len());
    for (number, line) in shown.lines().enumerate() {
        if number > 0 {
            message.push('\n');
            if !line.starts_with("  ") {
                message.push_str("  ");
            }
        }
        message.push_str(&plain(line));
    }
    if cut.is_some() {
        message.push_str(" [cut]");
    }
    message
}

/// A JSON document with unsafe characters as `\u009b`. They occur only in strings, where this is
/// equivalent.
pub(crate) fn plain_json(json: String) -> String {
    if !json.contains(is_unsafe) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_unsafe(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn terminal_controls_are_escaped_and_letters_are_not() {
        for (text, expected) in [
            ("größe/日本 \\ 'x'.txt", "größe/日本 \\ 'x'.txt"),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("\r\n\t\0", "\\r\\n\\t\\u{0}"),
            ("\u{202e}fdp.exe", "\\u{202e}fdp.exe"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{e0041}", "\\u{e0041}"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn json_keeps_its_meaning_without_an_unsafe_character() {
        let value = serde_json::json!({"name": "\x1b\u{9b}\u{7f}\u{202e}\u{e0041}\\ü"});
        let escaped = plain_json(value.to_string());
        assert!(!escaped.contains(is_unsafe), "{escaped}");
        let read: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(read, value);
    }

    #[test]
    fn further_lines_of_a_message_are_indented_and_long_ones_cut() {
        assert_eq!(
            plain_message("a\nbywash: done\x1b"),
            "a\n  bywash: done\\u{1b}"
        );
        assert_eq!(plain_message("a\n  line 2: b"), "a\n  line 2: b");
        let long = "ä".repeat(MAX_MESSAGE_CHARS + 1);
        let shown = plain_message(&long);
        assert_eq!(shown, format!("{} [cut]", &long[2..]));
        assert_eq!(plain_message(&long[2..]), long[2..]);
    }
}
