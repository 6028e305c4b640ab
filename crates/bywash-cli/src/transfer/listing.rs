//! Listings of any length, read item by item in the order of names.

use std::cmp::Ordering;
use std::future::Future;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt, try_join};

use crate::failure::Failure;

/// An item of a listing.
pub(crate) trait Named {
    /// Name below the root of the listing.
    fn name(&self) -> &str;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool;
}

/// How a listing gets its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By the store.
    Listed,
    /// In memory: for the stores without order.
    InMemory,
}

/// Reason for which there is no plan.
#[derive(Debug)]
pub(crate) enum Unplanned {
    /// A store lists out of order.
    Unordered,
    Failed(Failure),
}

impl From<Failure> for Unplanned {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Makes a plan from listings as they come, and again from sorted ones if a store lists out of order.
pub(crate) async fn planned<T, F>(make: impl Fn(Sort) -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Unplanned>>,
{
    let mut made = make(Sort::Listed).await;
    if matches!(made, Err(Unplanned::Unordered)) {
        tracing::info!("a store lists out of order: its names are sorted in memory");
        made = make(Sort::InMemory).await;
    }
    made.map_err(|unplanned| match unplanned {
        Unplanned::Failed(failure) => failure,
        Unplanned::Unordered => Failure::failed("cannot sort a listing; try again"),
    })
}

/// A listing in ascending order of names. Holds one item.
pub(crate) struct Listing<T> {
    items: BoxStream<'static, Result<T, Failure>>,
    next: Option<T>,
    /// Largest name so far.
    last: String,
}

impl<T: Named + Send + 'static> Listing<T> {
    pub(crate) async fn new(
        items: BoxStream<'static, Result<T, Failure>>,
        sort: Sort,
    ) -> Result<Self, Failure> {
        let items = match sort {
            Sort::Listed => items,
            Sort::InMemory => {
                let mut all: Vec<_> = items.try_collect().await?;
                all.sort_by(|a, b| a.name().cmp(b.name()));
                stream::iter(all.into_iter().map(Ok)).boxed()
            }
        };
        Ok(Self {
            items,
            next: None,
            last: String::new(),
        })
    }

    /// Reads the next item, unless it is here already.
    async fn fill(&mut self) -> Result<(), Unplanned> {
        while self.next.is_none() {
            let Some(item) = self.items.try_next().await? else {
                return Ok(());
            };
            let name = item.name();
            if name < self.last.as_str() {
                // The marker `dir/` of a folder is listed without its slash, at the place that it has with it.
                if format!("{name}/") < self.last {
                    return Err(Unplanned::Unordered);
                }
                if item.is_empty() {
                    continue;
                }
            } else {
                self.last.clear();
                self.last.push_str(name);
            }
            self.next = Some(item);
        }
        Ok(())
    }

    /// Returns the next item; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<T>, Unplanned> {
        self.fill().await?;
        Ok(self.next.take())
    }
}

/// Two listings side by side. Holds one item of each.
pub(crate) struct Merge<L, R> {
    pub(crate) left: Listing<L>,
    pub(crate) right: Listing<R>,
}

/// A name of one listing, or of both.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<L, R> {
    Left(L),
    Right(R),
    Both(L, R),
}

impl<L, R> Merge<L, R>
where
    L: Named + Send + 'static,
    R: Named + Send + 'static,
{
    /// Returns the next name of either side.
    pub(crate) async fn next(&mut self) -> Result<Option<Found<L, R>>, Unplanned> {
        let Self { left, right } = self;
        try_join!(left.fill(), right.fill())?;
        let order = match (&left.next, &right.next) {
            (Some(l), Some(r)) => l.name().cmp(r.name()),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        Ok(match order {
            Ordering::Less => left.next.take().map(Found::Left),
            Ordering::Greater => right.next.take().map(Found::Right),
            Ordering::Equal => {
                let both = left.next.take().zip(right.next.take());
                both.map(|(l, r)| Found::Both(l, r))
            }
        })
    }
}

/// Finds markers of folders: empty items with others below their name. Listings do not distinguish `dir/` from
/// `dir`, and a file cannot have the name of a folder.
///
/// An empty item waits until the listing has passed all names below it. The names of waiting items are prefixes of
/// the last name, so they are at most as many as that has characters.
#[derive(Debug)]
pub(crate) struct Markers<T> {
    waiting: Vec<(String, T)>,
}

impl<T> Markers<T> {
    pub(crate) fn new() -> Self {
        Self {
            waiting: Vec::new(),
        }
    }

    /// Notes that the listing has reached `name`. Returns the items that are no markers.
    pub(crate) fn reach(&mut self, name: &str) -> Vec<T> {
        let mut done = Vec::new();
        for index in (0..self.waiting.len()).rev() {
            let before = self.waiting[index].0.as_str();
            let below = name
                .strip_prefix(before)
                .map(|rest| rest.as_bytes().first().map(|byte| byte.cmp(&b'/')));
            match below {
                Some(Some(Ordering::Equal)) => drop(self.waiting.remove(index)),
                Some(Some(Ordering::Greater)) => done.push(self.waiting.remove(index).1),
                None if name > before => done.push(self.waiting.remove(index).1),
                // Names below it are still to come.
                _ => {}
            }
        }
        done
    }

    /// Holds an empty item until it is known whether it is a marker.
    pub(crate) fn hold(&mut self, name: String, item: T) {
        self.waiting.push((name, item));
    }

    /// The items that still wait at the end of the listing: no markers.
    pub(crate) fn end(self) -> impl Iterator<Item = T> {
        self.waiting.into_iter().map(|(_, item)| item)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Item(String, bool);

    impl Named for Item {
        fn name(&self) -> &str {
            &self.0
        }

        fn is_empty(&self) -> bool {
            self.1
        }
    }

    fn items<const N: usize>(
        names: [(&str, bool); N],
    ) -> BoxStream<'static, Result<Item, Failure>> {
        let items = names.map(|(name, empty)| Ok(Item(name.to_owned(), empty)));
        stream::iter(items).boxed()
    }

    #[tokio::test]
    async fn merge_pairs_equal_names() {
        let sides = |names: &[&str]| {
            let items: Vec<_> = names
                .iter()
                .map(|name| Ok(Item((*name).to_owned(), false)))
                .collect();
            Listing::new(stream::iter(items).boxed(), Sort::Listed)
        };
        let mut merge = Merge {
            left: sides(&["a", "c", "d"]).await.unwrap(),
            right: sides(&["b", "c", "e"]).await.unwrap(),
        };
        let mut found = String::new();
        while let Some(next) = merge.next().await.unwrap() {
            found += &match next {
                Found::Left(item) => format!("<{} ", item.0),
                Found::Right(item) => format!(">{} ", item.0),
                Found::Both(item, _) => format!("={} ", item.0),
            };
        }
        assert_eq!(found, "<a >b =c <d >e ");
    }

    /// An item that counts how many of it there are.
    struct Counted(String, Arc<AtomicUsize>);

    impl Counted {
        fn new(index: usize, count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Relaxed);
            Self(format!("{index:09}"), Arc::clone(count))
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Relaxed);
        }
    }

    impl Named for Counted {
        fn name(&self) -> &str {
            &self.0
        }

        fn is_empty(&self) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn merge_of_a_million_names_holds_one_of_each_side() {
        const NAMES: usize = 1_000_000;
        let count = Arc::new(AtomicUsize::new(0));
        let side = |step: usize| {
            let count = Arc::clone(&count);
            let items = (0..NAMES).map(move |index| Ok(Counted::new(index * step, &count)));
            Listing::new(stream::iter(items).boxed(), Sort::Listed)
        };
        let mut merge = Merge {
            left: side(2).await.unwrap(),
            right: side(3).await.unwrap(),
        };
        let (mut both, mut max) = (0, 0);
        while let Some(next) = merge.next().await.unwrap() {
            max = max.max(count.load(Relaxed));
            both += usize::from(matches!(next, Found::Both(..)));
        }
        // Multiples of six below two million.
        assert_eq!((both, max), (NAMES / 3 + 1, 2));
    }

    #[tokio::test]
    async fn store_without_order_is_sorted_in_memory() {
        let names = planned(async |sort| {
            let mut listing = Listing::new(items([("b", false), ("a", false)]), sort).await?;
            let mut names = Vec::new();
            while let Some(item) = listing.next().await? {
                names.push(item.0);
            }
            Ok(names)
        });
        assert_eq!(names.await.unwrap(), ["a", "b"]);
    }

    #[tokio::test]
    async fn markers_listed_without_their_slash_are_in_order_and_left_out() {
        let names = [("dir-x/a", false), ("dir", true), ("dir/a", false)];
        let mut listing = Listing::new(items(names), Sort::Listed).await.unwrap();
        assert_eq!(listing.next().await.unwrap().unwrap().0, "dir-x/a");
        assert_eq!(listing.next().await.unwrap().unwrap().0, "dir/a");
        assert!(listing.next().await.unwrap().is_none());
    }

    #[test]
    fn markers_are_distinguished_from_empty_objects() {
        let mut markers = Markers::new();
        let mut left = Vec::new();
        for (name, empty) in [
            ("a", true),
            ("a!", true),
            ("a!b", true),
            ("a-b", true),
            ("a/b", true),
            ("b", true),
            ("c", false),
            ("c/d", true),
        ] {
            left.extend(markers.reach(name));
            if empty {
                markers.hold(name.to_owned(), name)
            } else {
                left.push(name)
            }
        }
        left.extend(markers.end());
        left.sort_unstable();
        assert_eq!(left, ["a!", "a!b", "a-b", "a/b", "b", "c", "c/d"]);
    }

    #[test]
    fn waiting_items_are_at_most_the_characters_of_a_name() {
        let mut markers = Markers::new();
        for index in 0..100_000 {
            let name = format!("a!{index:05}");
            _ = markers.reach(&name);
            markers.hold(name, ());
            assert!(markers.waiting.len() <= 8, "{}", markers.waiting.len());
        }
    }
}
