//! Which classes of faults a seed has: a random half of them, each often, in place of all of them, each rarely.
//!
//! With all classes on, the commonest ends most runs before a rare one happens, and some pairs never meet. Half of them leave room for
//! rates at which each class that is on does happen (Groce et al., *Swarm testing*, ISSTA 2012).

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

/// The classes of faults that a seed has, and the turn in which they come.
#[derive(Debug, Clone)]
pub struct Swarm<T> {
    on: Vec<T>,
    /// Classes that have not had their turn in this round.
    due: Vec<T>,
}

impl<T: Copy + PartialEq> Swarm<T> {
    /// Draws half of `classes`; of an odd number, as often one more as one less.
    #[must_use]
    pub fn draw(rng: &mut StdRng, classes: &[T]) -> Self {
        let mut on = classes.to_vec();
        on.shuffle(rng);
        let odd = classes.len() % 2;
        on.truncate(classes.len() / 2 + rng.random_range(0..=odd));
        Self {
            on,
            due: Vec::new(),
        }
    }

    /// Returns the classes that are on, in random order.
    #[must_use]
    pub fn on(&self) -> &[T] {
        &self.on
    }

    /// Returns whether a class is on.
    #[must_use]
    pub fn has(&self, class: T) -> bool {
        self.on.contains(&class)
    }

    /// Draws a class that is on: each has its turn before any has a second. `None` if no class is on.
    pub fn take(&mut self, rng: &mut StdRng) -> Option<T> {
        if self.due.is_empty() {
            self.due.clone_from(&self.on);
            self.due.shuffle(rng);
        }
        self.due.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    const SEEDS: u64 = 400;

    fn swarms(classes: &[usize]) -> Vec<Swarm<usize>> {
        let draw = |seed| Swarm::draw(&mut StdRng::seed_from_u64(seed), classes);
        (0..SEEDS).map(draw).collect()
    }

    #[test]
    fn each_class_is_on_in_half_of_the_seeds_and_each_pair_meets() {
        for count in [2, 3, 6, 13, 17] {
            let classes: Vec<_> = (0..count).collect();
            let swarms = swarms(&classes);
            for class in &classes {
                let on = swarms.iter().filter(|swarm| swarm.has(*class)).count();
                let share = on as f64 / SEEDS as f64;
                assert!((0.4..=0.6).contains(&share), "{class} of {count}: {share}");
            }
            // Of two classes one is on: they never meet.
            for (a, b) in classes.iter().flat_map(|a| (0..*a).map(move |b| (*a, b))) {
                let met = swarms.iter().any(|swarm| swarm.has(a) && swarm.has(b));
                assert_eq!(met, count > 2, "{a} and {b} of {count}");
                let apart = |swarm: &&Swarm<_>| swarm.has(a) != swarm.has(b);
                assert!(swarms.iter().any(|swarm| apart(&swarm)), "{a}, {b}");
            }
        }
    }

    #[test]
    fn each_class_has_its_turn_before_any_has_a_second() {
        let mut rng = StdRng::seed_from_u64(1);
        for mut swarm in swarms(&[0, 1, 2, 3, 4]) {
            let on: BTreeSet<_> = swarm.on().iter().copied().collect();
            for _ in 0..3 {
                let round: BTreeSet<_> = on.iter().filter_map(|_| swarm.take(&mut rng)).collect();
                assert_eq!(round, on);
            }
        }
    }

    #[test]
    fn seed_draws_the_same_classes_again() {
        for (first, second) in swarms(&[0, 1, 2]).iter().zip(swarms(&[0, 1, 2])) {
            assert_eq!(first.on(), second.on());
        }
    }

    #[test]
    fn without_classes_there_is_no_turn() {
        let mut rng = StdRng::seed_from_u64(0);
        assert_eq!(Swarm::<u8>::draw(&mut rng, &[]).take(&mut rng), None);
    }
}
