//! The cases, one file per group. Each has a name for `--case`, and is reproducible from its seed.

mod chaos;
mod cluster;
mod copies;
mod disk;
mod doors;
mod hold;
mod hostile;
mod lies;
mod load;
pub mod local;
mod mount;
mod moves;
mod origins;
mod raw;
mod requests;
mod series;
mod store;
mod tables;
mod uploads;
mod working_set;

use std::pin::Pin;

use crate::CaseError;
use crate::context::CaseContext;

/// Attack of a case.
pub type Attack = for<'a> fn(
    &'a mut CaseContext,
) -> Pin<Box<dyn Future<Output = Result<(), CaseError>> + Send + 'a>>;

/// One case of the siege.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub attack: Attack,
}

/// Creates a case from its name and an `async fn(&mut CaseContext)`.
macro_rules! case {
    ($name:literal, $attack:path) => {
        crate::cases::Case {
            name: $name,
            attack: |context| Box::pin($attack(context)),
        }
    };
}
pub(crate) use case;

/// Returns all cases, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Case> {
    [
        tables::CASES,
        uploads::CASES,
        load::CASES,
        copies::CASES,
        moves::CASES,
        doors::CASES,
        requests::CASES,
        series::CASES,
        lies::CASES,
        origins::CASES,
        disk::CASES,
        chaos::CASES,
        cluster::CASES,
        local::CASES,
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
