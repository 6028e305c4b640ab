//! Whether two sides of a cell differ by more than chance: spread over rounds and a Mann-Whitney U test, as benchstat has them.

/// Returns half of the range between the quartiles, as a share of the median; `None` below three values.
pub(super) fn spread(values: &[f64]) -> Option<f64> {
    if values.len() < 3 {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = share * (sorted.len() - 1) as f64;
        let (low, part) = (place.floor() as usize, place.fract());
        let high = (low + 1).min(sorted.len() - 1);
        sorted[low] + (sorted[high] - sorted[low]) * part
    };
    Some((at(0.75) - at(0.25)) / 2.0 / at(0.5))
}

/// Returns the probability that two samples of one distribution differ as much as these, or more: the exact two-sided
/// Mann-Whitney U test. Equal values count half for each side. `None` if a side has no value.
pub(super) fn p_value(ours: &[f64], peer: &[f64]) -> Option<f64> {
    if ours.is_empty() || peer.is_empty() {
        return None;
    }
    // Twice U, so that ties stay whole.
    let twice_u: usize = ours
        .iter()
        .flat_map(|a| peer.iter().map(move |b| a.total_cmp(b)))
        .map(|order| match order {
            std::cmp::Ordering::Less => 2,
            std::cmp::Ordering::Equal => 1,
            std::cmp::Ordering::Greater => 0,
        })
        .sum();
    let all = 2 * ours.len() * peer.len();
    let smaller = twice_u.min(all - twice_u) / 2;
    let ways = arrangements(ours.len(), peer.len());
    let total: f64 = ways.iter().sum();
    let extreme: f64 = ways[..=smaller].iter().sum();
    Some((2.0 * extreme / total).min(1.0))
}

/// Returns, for each value of U, in how many orders of `ours` and `peer` values it occurs.
fn arrangements(ours: usize, peer: usize) -> Vec<f64> {
    // `ways[b]`: by U, for as many values of ours as were added and `b` of the peer's.
    let mut ways: Vec<Vec<f64>> = vec![vec![1.0]; peer + 1];
    for a in 1..=ours {
        let mut next: Vec<Vec<f64>> = vec![vec![1.0]];
        for b in 1..=peer {
            // The largest value is of ours, and above `b` of the peer's; or it is the peer's.
            let mut of_u = vec![0.0; a * b + 1];
            for (u, count) in ways[b].iter().enumerate() {
                of_u[u + b] += count;
            }
            for (u, count) in next[b - 1].iter().enumerate() {
                of_u[u] += count;
            }
            next.push(of_u);
        }
        ways = next;
    }
    ways.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }

    #[test]
    fn separated_samples_have_the_probabilities_of_the_tables() {
        let low = [1.0, 2.0, 3.0, 4.0, 5.0];
        let high = [6.0, 7.0, 8.0, 9.0, 10.0];
        near(p_value(&low, &high).unwrap(), 2.0 / 252.0);
        near(p_value(&high, &low).unwrap(), 2.0 / 252.0);
        near(p_value(&low[..3], &high[..3]).unwrap(), 0.1);
        // One of ten pairs is the other way round.
        near(p_value(&[1.0, 2.0, 6.5], &[6.0, 7.0, 8.0]).unwrap(), 0.2);
    }

    #[test]
    fn equal_samples_do_not_differ() {
        near(p_value(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0]).unwrap(), 1.0);
        near(p_value(&[1.0, 3.0, 5.0], &[2.0, 3.0, 4.0]).unwrap(), 1.0);
        assert_eq!(p_value(&[], &[1.0]), None);
    }

    #[test]
    fn arrangements_are_all_there() {
        // 10 over 4.
        near(arrangements(4, 6).iter().sum(), 210.0);
        assert_eq!(arrangements(1, 2), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn spread_is_half_of_the_range_between_quartiles() {
        near(spread(&[90.0, 100.0, 110.0]).unwrap(), 0.05);
        assert_eq!(spread(&[1.0, 2.0]), None);
    }
}
