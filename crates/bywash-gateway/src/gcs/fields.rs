//! Partial responses: the parameter `fields` names the properties of a document that a client wants, as in
//! `kind,items(name,size),items/metadata`.
//!
//! The text of the document is cut, so that a large page needs no second form in memory.

use super::error::{GcsError, GcsResult};
use super::query::Query;
use crate::limits::{MAX_FIELDS_BYTES, MAX_FIELDS_DEPTH};

/// A selection of properties.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Fields(Vec<Field>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    /// `*` stands for all.
    name: String,
    /// Selection within its value; `None`: all.
    below: Option<Fields>,
}

fn invalid(text: &str, reason: &str) -> GcsError {
    let message = format!(
        "fields {text:?}: {reason}; it is names with commas, as in items(name,size),nextPageToken."
    );
    GcsError::parameter("fields", message)
}

impl Fields {
    /// Parses the parameter of a request; `None` without it.
    pub(crate) fn of(query: &Query) -> GcsResult<Option<Self>> {
        query.get("fields").map(Self::parse).transpose()
    }

    pub(crate) fn parse(text: &str) -> GcsResult<Self> {
        if text.len() > MAX_FIELDS_BYTES {
            let message = format!(
                "fields has {} bytes, more than {MAX_FIELDS_BYTES}; leave it out.",
                text.len()
            );
            return Err(GcsError::parameter("fields", message));
        }
        let mut rest = text;
        let fields = Self::list(text, &mut rest, 0)?;
        if rest.is_empty() {
            Ok(fields)
        } else {
            Err(invalid(text, "a ) closes nothing"))
        }
    }

    /// Parses a list up to the parenthesis that ends it.
    fn list(text: &str, rest: &mut &str, depth: usize) -> GcsResult<Self> {
        let mut fields = Vec::new();
        loop {
            fields.push(Field::parse(text, rest, depth)?);
            match rest.strip_prefix(',') {
                Some(after) => *rest = after,
                None => return Ok(Self(fields)),
            }
        }
    }

    /// Whether the client names one of the properties `names` below `of`.
    pub(crate) fn names(&self, of: &str, names: &[&str]) -> bool {
        self.0.iter().any(|field| {
            let below = field.below.as_ref().filter(|_| field.name == of);
            below.is_some_and(|below| {
                let is_named = |field: &Field| names.contains(&field.name.as_str());
                below.0.iter().any(is_named)
            })
        })
    }

    /// The selected part of a document; `None` if it is no JSON.
    pub(crate) fn select(&self, document: &[u8]) -> Option<Vec<u8>> {
        let mut walk = Walk {
            document,
            at: 0,
            selected: Vec::new(),
        };
        walk.value(&[self])?;
        Some(walk.selected)
    }
}

impl Field {
    fn parse(text: &str, rest: &mut &str, depth: usize) -> GcsResult<Self> {
        if depth >= MAX_FIELDS_DEPTH {
            return Err(invalid(text, "it is too deep"));
        }
        let length = rest.find([',', '(', ')', '/']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(length);
        *rest = after;
        let name = name.trim();
        if name.is_empty() {
            return Err(invalid(text, "a name is empty"));
        }
        let below = if let Some(after) = rest.strip_prefix('/') {
            *rest = after;
            Some(Fields(vec![Self::parse(text, rest, depth + 1)?]))
        } else if let Some(after) = rest.strip_prefix('(') {
            *rest = after;
            let below = Fields::list(text, rest, depth + 1)?;
            let after = rest.strip_prefix(')');
            *rest = after.ok_or_else(|| invalid(text, "a ( is not closed"))?;
            Some(below)
        } else {
            None
        };
        Ok(Self {
            name: name.to_owned(),
            below,
        })
    }
}

/// A walk over the text of a document. Each method returns `None` if the text is no JSON.
struct Walk<'a> {
    document: &'a [u8],
    at: usize,
    selected: Vec<u8>,
}

impl Walk<'_> {
    fn peek(&mut self) -> Option<u8> {
        while self.document.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.document.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// Passes a string, whose first quote is next.
    fn pass_string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            match self.document.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    /// Passes a value.
    fn pass(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.pass_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' => {
                    if depth == 0 {
                        return None;
                    }
                    self.at += 1;
                }
                _ => {
                    let is_over =
                        |byte: &u8| b",:]}[{\"".contains(byte) || byte.is_ascii_whitespace();
                    let rest = &self.document[self.at..];
                    self.at += rest.iter().position(is_over).unwrap_or(rest.len());
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Copies a value.
    fn copy(&mut self) -> Option<()> {
        self.peek()?;
        let begin = self.at;
        self.pass()?;
        self.selected
            .extend_from_slice(&self.document[begin..self.at]);
        Some(())
    }

    /// Copies the parts of a value that any of the selections has.
    fn value(&mut self, selections: &[&Fields]) -> Option<()> {
        match self.peek()? {
            b'{' => self.object(selections),
            b'[' => self.array(selections),
            _ => self.copy(),
        }
    }

    fn array(&mut self, selections: &[&Fields]) -> Option<()> {
        self.take(b'[')?;
        self.selected.push(b'[');
        while self.peek()? != b']' {
            self.value(selections)?;
            if self.peek()? == b',' {
                self.at += 1;
                self.selected.push(b',');
            }
        }
        self.at += 1;
        self.selected.push(b']');
        Some(())
    }

    fn object(&mut self, selections: &[&Fields]) -> Option<()> {
        self.take(b'{')?;
        self.selected.push(b'{');
        let mut is_first = true;
        while self.peek()? != b'}' {
            let begin = self.at;
            self.pass_string()?;
            let name = &self.document[begin..self.at];
            self.take(b':')?;
            let is_named = |field: &&Field| {
                field.name == "*" || name[1..name.len() - 1] == *field.name.as_bytes()
            };
            let fields = selections.iter().flat_map(|fields| &fields.0);
            let fields: Vec<&Field> = fields.filter(is_named).collect();
            if fields.is_empty() {
                self.pass()?;
            } else {
                if !std::mem::take(&mut is_first) {
                    self.selected.push(b',');
                }
                self.selected.extend_from_slice(name);
                self.selected.push(b':');
                let below: Option<Vec<&Fields>> =
                    fields.iter().map(|field| field.below.as_ref()).collect();
                match below {
                    // One selection wants the whole value.
                    None => self.copy()?,
                    Some(below) => self.value(&below)?,
                }
            }
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        self.selected.push(b'}');
        Some(())
    }
}

#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (fields, document) = text.split_once('\n').unwrap_or((&text, "{}"));
    let Ok(fields) = Fields::parse(fields) else {
        return;
    };
    let selected = fields.select(document.as_bytes());
    if serde_json::from_str::<serde_json::Value>(document).is_ok() {
        // A part of a document is a document.
        let selected = selected.unwrap_or_default();
        assert!(serde_json::from_slice::<serde_json::Value>(&selected).is_ok());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const DOCUMENT: &str = r#"{"kind":"k","items":[{"name":"a\",}","size":"1","m":{"x":"1","y":"2"}},{"name":"b","size":"2"}],
        "next":null,"list":[1,2]}"#;

    #[test]
    fn properties_that_are_named_below_others_are_known() {
        let wants = |text: &str| {
            let fields = Fields::parse(text).unwrap();
            fields.names("items", &["metadata", "metageneration"])
        };
        for text in [
            "items/metadata",
            "items(name,metageneration)",
            "prefixes,items(name),items(metadata(a))",
        ] {
            assert!(wants(text), "{text}");
        }
        for text in [
            "items",
            "*",
            "items(name)",
            "metadata",
            "items/owner/metadata",
        ] {
            assert!(!wants(text), "{text}");
        }
    }

    #[test]
    fn selected_properties_are_left() {
        for (fields, expected) in [
            ("kind", r#"{"kind":"k"}"#),
            ("next,kind", r#"{"kind":"k","next":null}"#),
            ("items/name", r#"{"items":[{"name":"a\",}"},{"name":"b"}]}"#),
            (
                "items(size),items/m/y",
                r#"{"items":[{"size":"1","m":{"y":"2"}},{"size":"2"}]}"#,
            ),
            (
                "items(name),items",
                r#"{"items":[{"name":"a\",}","size":"1","m":{"x":"1","y":"2"}},{"name":"b","size":"2"}]}"#,
            ),
            (
                "items/*/x",
                r#"{"items":[{"name":"a\",}","size":"1","m":{"x":"1"}},{"name":"b","size":"2"}]}"#,
            ),
            ("list, absent", r#"{"list":[1,2]}"#),
            ("absent", "{}"),
        ] {
            let selected = Fields::parse(fields).unwrap().select(DOCUMENT.as_bytes());
            assert_eq!(
                String::from_utf8(selected.unwrap()).unwrap(),
                expected,
                "{fields}"
            );
        }
        let all = Fields::parse("*").unwrap().select(DOCUMENT.as_bytes());
        let value = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&all.unwrap()), value(DOCUMENT.as_bytes()));
    }

    #[test]
    fn selections_that_are_none_are_refused() {
        for fields in [
            "a,",
            "a(b",
            "a)",
            "a()",
            "/a",
            "a//b",
            &"a/".repeat(MAX_FIELDS_DEPTH),
        ] {
            assert!(Fields::parse(fields).is_err(), "{fields}");
        }
        let long = "a".repeat(MAX_FIELDS_BYTES);
        assert!(Fields::parse(&long).is_ok());
        assert!(Fields::parse(&format!("{long}a")).is_err());
        let deep = ["a"; MAX_FIELDS_DEPTH].join("/");
        assert!(Fields::parse(&deep).is_ok());
        assert!(Fields::parse(&format!("a/{deep}")).is_err());
    }

    #[test]
    fn texts_that_are_no_documents_are_not_cut() {
        for text in ["", "{", "[1", r#"{"a"#, r#"{"a":"b\"#, r#"{"a":}"#] {
            assert_eq!(
                Fields::parse("a").unwrap().select(text.as_bytes()),
                None,
                "{text}"
            );
        }
    }
}
