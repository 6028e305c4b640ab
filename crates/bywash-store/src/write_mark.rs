//! Marks of conditional writes: a random name in the metadata of an object, by which the write that made it is recognised.

use object_store::{Attribute, Attributes, GetResult};

use crate::limits::MAX_MARKED_METADATA_BYTES;

/// Name of the metadata. Azure allows no hyphen.
const NAME: &str = "bywashwrite";
/// Hexadecimal digits of a mark.
const DIGITS: usize = 32;

fn attribute() -> Attribute {
    Attribute::Metadata(NAME.into())
}

/// The mark of an object, in the extensions of a response: readers do not see it among the attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteMark(String);

impl WriteMark {
    /// Adds a new mark to the attributes of a write; `None` if they would become longer than stores take.
    pub fn add(attributes: &mut Attributes) -> Option<Self> {
        let bytes =
            |(attribute, value): (&Attribute, &object_store::AttributeValue)| match attribute {
                Attribute::Metadata(name) if name != NAME => name.len() + value.len(),
                _ => 0,
            };
        let taken: usize = attributes.iter().map(bytes).sum();
        if taken + NAME.len() + DIGITS > MAX_MARKED_METADATA_BYTES {
            return None;
        }
        let mark = format!("{:032x}", rand::random::<u128>());
        attributes.insert(attribute(), mark.clone().into());
        Some(Self(mark))
    }

    /// Moves the mark of a response from the attributes to the extensions.
    pub fn hide(response: &mut GetResult) {
        if let Some(mark) = response.attributes.remove(&attribute()) {
            response.extensions.insert(Self(mark.to_string()));
        }
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
            let before = attributes.len();
            let mark = WriteMark::add(&mut attributes);
            assert_eq!(mark.is_some(), is_marked, "{bytes}");
            assert_eq!(attributes.len(), before + usize::from(is_marked), "{bytes}");
        }
    }

    #[test]
    fn two_writes_have_different_marks_and_the_last_one_holds() {
        let mut attributes = Attributes::new();
        let first = WriteMark::add(&mut attributes);
        let second = WriteMark::add(&mut attributes);
        assert!(first.is_some() && first != second);
        let kept = attributes.get(&attribute()).map(|mark| mark.to_string());
        assert_eq!(kept, second.map(|mark| mark.0));
    }
}
