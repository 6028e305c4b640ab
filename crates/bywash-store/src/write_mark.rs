//! Marks of conditional writes: a random name in the metadata of an object, by which the write that made it is recognised.

use object_store::{Attribute, Attributes, GetResult};

use crate::limits::MAX_MARKED_METADATA_BYTES;

/// Name of the metadata. Azure allows no hyphen.
const NAME: &str = "bywashwrite";
/// Hexadecimal digits of a mark.
const DIGITS: usize = 32;

/// Added to the name of a client's metadata that would be taken for a mark. Its writer may be another Bywash, and this one its
/// origin.
const ESCAPE: char = '0';

fn attribute() -> Attribute {
    Attribute::Metadata(NAME.into())
}

/// The name of metadata that is a mark's, with any number of escapes. In any case: stores that keep metadata in headers have none.
fn escaped_name(attribute: &Attribute) -> Option<&str> {
    let Attribute::Metadata(name) = attribute else {
        return None;
    };
    let (start, escapes) = name.split_at_checked(NAME.len())?;
    let is_of_mark = start.eq_ignore_ascii_case(NAME) && escapes.chars().all(|c| c == ESCAPE);
    is_of_mark.then_some(name.as_ref())
}

/// Gives other names to metadata that is named as marks are.
fn rename(attributes: &mut Attributes, other: impl Fn(&str) -> Option<String>) {
    let names = attributes.iter().map(|(attribute, _)| attribute);
    let named = names.filter(|attribute| escaped_name(attribute).is_some());
    let named: Vec<Attribute> = named.cloned().collect();
    let renamed: Vec<_> = named
        .iter()
        .filter_map(|old| {
            let new = other(escaped_name(old)?)?;
            let value = attributes.remove(old)?;
            Some((Attribute::Metadata(new.into()), value))
        })
        .collect();
    for (attribute, value) in renamed {
        attributes.insert(attribute, value);
    }
}

/// The mark of a write or an object, in the extensions of a request and a response: readers do not see it among the attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteMark(String);

impl WriteMark {
    /// A new mark for a write with these attributes; `None` if they would become longer than stores take.
    pub fn new(attributes: &Attributes) -> Option<Self> {
        let bytes =
            |(attribute, value): (&Attribute, &object_store::AttributeValue)| match attribute {
                Attribute::Metadata(name) => {
                    let escape = usize::from(escaped_name(attribute).is_some());
                    name.len() + escape + value.len()
                }
                _ => 0,
            };
        let taken: usize = attributes.iter().map(bytes).sum();
        let fits = taken + NAME.len() + DIGITS <= MAX_MARKED_METADATA_BYTES;
        fits.then(|| Self(format!("{:032x}", rand::random::<u128>())))
    }

    /// Gives the client's metadata of a write the names under which it is stored.
    pub fn escape(attributes: &mut Attributes) {
        rename(attributes, |name| Some(format!("{name}{ESCAPE}")));
    }

    /// Adds the mark of a write to its attributes, which are escaped.
    pub fn add(self, attributes: &mut Attributes) {
        attributes.insert(attribute(), self.0.into());
    }

    /// Moves the mark of a response from the attributes to the extensions, and gives the client's metadata its names.
    pub fn hide(response: &mut GetResult) {
        // Other programs may have metadata of this name.
        let is_mark = |value: &str| {
            value.len() == DIGITS && value.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        let mark = response.attributes.get(&attribute());
        if mark.is_some_and(|mark| is_mark(mark))
            && let Some(mark) = response.attributes.remove(&attribute())
        {
            response.extensions.insert(Self(mark.to_string()));
        }
        rename(&mut response.attributes, |name| {
            Some(name.strip_suffix(ESCAPE)?.to_owned())
        });
    }

    /// Returns whether the object of a response was made by the write of this mark.
    pub fn is_of(&self, response: &GetResult) -> bool {
        response.extensions.get() == Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_the_maximum_have_a_mark_and_longer_ones_have_none() {
        let room = MAX_MARKED_METADATA_BYTES - NAME.len() - DIGITS;
        for (bytes, is_marked) in [(0, true), (room, true), (room + 1, false)] {
            let mut attributes = Attributes::new();
            let name = Attribute::Metadata("n".into());
            if bytes > 0 {
                attributes.insert(name, "v".repeat(bytes - 1).into());
            }
            let mark = WriteMark::new(&attributes);
            assert_eq!(mark.is_some(), is_marked, "{bytes}");
        }
    }

    #[test]
    fn two_writes_have_different_marks() {
        let attributes = Attributes::new();
        assert_ne!(WriteMark::new(&attributes), WriteMark::new(&attributes));
    }

    #[test]
    fn metadata_of_clients_is_never_taken_for_a_mark() {
        let names = [
            "bywashwrite",
            "BywashWrite0",
            "bywashwrite00",
            "bywashwrite1",
            "bywashwrit",
        ];
        let sent = names.map(|name| (Attribute::Metadata(name.into()), "0".repeat(DIGITS)));
        let sent = Attributes::from_iter(sent);
        let mut stored = sent.clone();
        WriteMark::escape(&mut stored);
        assert_eq!(stored.get(&attribute()), None);
        rename(&mut stored, |name| {
            Some(name.strip_suffix(ESCAPE)?.to_owned())
        });
        assert_eq!(stored, sent);
    }
}
