//! Elements, error documents, and characters that XML 1.0 cannot represent.

/// The first line of a document.
pub(crate) const DECLARATION: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

/// An element with a text, escaped.
pub(crate) fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", quick_xml::escape::escape(text))
}

/// The document of an error with these elements, of both endpoints.
pub(crate) fn error_document<T: AsRef<str>>(
    elements: impl IntoIterator<Item = (&'static str, T)>,
) -> String {
    let elements = elements.into_iter();
    let elements: String = elements
        .map(|(name, text)| element(name, text.as_ref()))
        .collect();
    format!("{DECLARATION}<Error>{elements}</Error>")
}

/// Whether XML 1.0 represents the character unchanged: no control character but tab and line feed,
/// and no noncharacter. XML parsers convert a carriage return to a line feed.
pub(crate) fn fits(character: char) -> bool {
    match character {
        '\t' | '\n' => true,
        '\u{FFFE}' | '\u{FFFF}' => false,
        other => other >= ' ',
    }
}

/// Whether all characters of a UTF-8 document are representable.
pub(crate) fn is_document(bytes: &[u8]) -> bool {
    // A byte below a space is always a character of its own, and all noncharacters begin with 0xEF 0xBF.
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n');
    let is_noncharacter = |found: &[u8]| matches!(found, [0xEF, 0xBF, 0xBE | 0xBF]);
    !bytes.iter().any(is_control) && !bytes.windows(3).any(is_noncharacter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_byte_checks_agree_on_every_character() {
        for character in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = format!("<Key>{character}</Key>");
            assert_eq!(
                fits(character),
                is_document(text.as_bytes()),
                "{character:?}"
            );
        }
        for unfit in ['\0', '\u{1}', '\r', '\u{1F}', '\u{FFFE}', '\u{FFFF}'] {
            assert!(!fits(unfit), "{unfit:?}");
        }
    }
}
