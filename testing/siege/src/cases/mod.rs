//! The cases, one file a group. Each has a name for `--case`, and is reproducible from its seed.

mod chaos;
mod hostile;
mod lies;
mod load;
mod origins;
mod raw;
mod requests;
mod series;
mod store;
mod tables;
mod uploads;

use std::pin::Pin;

use crate::Trouble;
use crate::field::Field;

/// The attack of a case on its field.
pub type Attack =
    for<'a> fn(&'a mut Field) -> Pin<Box<dyn Future<Output = Result<(), Trouble>> + Send + 'a>>;

/// One case of the siege.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub attack: Attack,
}

/// A case from its name and an `async fn(&mut Field)`.
macro_rules! case {
    ($name:literal, $attack:path) => {
        crate::cases::Case {
            name: $name,
            attack: |field| Box::pin($attack(field)),
        }
    };
}
pub(crate) use case;

/// All cases, in the order they run.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        tables::CASES,
        uploads::CASES,
        load::CASES,
        requests::CASES,
        series::CASES,
        lies::CASES,
        origins::CASES,
        chaos::CASES,
        hostile::CASES,
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn each_name_is_used_once() {
        let mut names: Vec<_> = all().iter().map(|case| case.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
