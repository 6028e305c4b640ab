//! Tables of names that threads share: ours, locks around the standard library's map, and concurrent maps.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use bywash_mem::Names;

/// A table of names with numbers. A new name gets the number of names before it.
pub(super) trait Design: Send + Sync + 'static {
    fn empty() -> Self;
    fn get(&self, name: &str) -> Option<u64>;
    fn get_or_create(&self, name: &str) -> u64;
}

type Map = HashMap<Box<str>, u64, RandomState>;

impl Design for Names<u64> {
    fn empty() -> Self {
        Self::new()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.get(name).copied()
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        *self.get_or_insert_with_id("", name, u64::from)
    }
}

/// A map without a lock: read by many threads, or written by one.
#[derive(Debug)]
pub(super) struct Plain(Map);

impl Plain {
    pub(super) fn of(names: &[&str]) -> Self {
        let names = names.iter().zip(0..);
        Self(names.map(|(name, at)| (Box::from(*name), at)).collect())
    }

    #[inline]
    pub(super) fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}

fn create(map: &mut Map, name: &str) -> u64 {
    match map.get(name) {
        Some(number) => *number,
        None => {
            let number = map.len() as u64;
            map.insert(name.into(), number);
            number
        }
    }
}

impl Design for std::sync::Mutex<Map> {
    fn empty() -> Self {
        Self::default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.lock().ok()?.get(name).copied()
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        self.lock()
            .map_or(u64::MAX, |mut map| create(&mut map, name))
    }
}

impl Design for std::sync::RwLock<Map> {
    fn empty() -> Self {
        Self::default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.read().ok()?.get(name).copied()
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        Design::get(self, name).unwrap_or_else(|| {
            self.write()
                .map_or(u64::MAX, |mut map| create(&mut map, name))
        })
    }
}

impl Design for parking_lot::RwLock<Map> {
    fn empty() -> Self {
        Self::default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.read().get(name).copied()
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        Design::get(self, name).unwrap_or_else(|| create(&mut self.write(), name))
    }
}

impl Design for dashmap::DashMap<Box<str>, u64, RandomState> {
    fn empty() -> Self {
        Self::default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.get(name).map(|number| *number)
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        // Counting the names would lock every shard, so another number is used.
        Design::get(self, name)
            .unwrap_or_else(|| *self.entry(name.into()).or_insert(name.len() as u64))
    }
}

impl Design for papaya::HashMap<Box<str>, u64, RandomState> {
    fn empty() -> Self {
        Self::default()
    }

    #[inline]
    fn get(&self, name: &str) -> Option<u64> {
        self.pin().get(name).copied()
    }

    #[inline]
    fn get_or_create(&self, name: &str) -> u64 {
        let map = self.pin();
        match map.get(name) {
            Some(number) => *number,
            None => *map.get_or_insert(name.into(), name.len() as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn works<D: Design>() {
        let table = D::empty();
        assert_eq!(table.get("a"), None);
        let number = table.get_or_create("a");
        assert_eq!(table.get_or_create("a"), number);
        assert_eq!(table.get("a"), Some(number));
        assert_eq!(table.get("b"), None);
    }

    #[test]
    fn all_designs_work() {
        works::<Names<u64>>();
        works::<std::sync::Mutex<Map>>();
        works::<std::sync::RwLock<Map>>();
        works::<parking_lot::RwLock<Map>>();
        works::<dashmap::DashMap<Box<str>, u64, RandomState>>();
        works::<papaya::HashMap<Box<str>, u64, RandomState>>();
        assert_eq!(Plain::of(&["a", "b"]).get("b"), Some(1));
    }
}
