//! Files and manifests over a store in memory.

use std::sync::Arc;
use std::time::Duration;

use bywash_mem::{BlockPool, PoolConfig};
use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::*;
use crate::frozen::{Frozen, FrozenSeries};

fn span() -> Span {
    Span::new(Duration::from_secs(7200)).unwrap()
}

fn budget() -> Budget {
    BlockPool::new(PoolConfig::new(64 << 20))
        .unwrap()
        .budget()
        .clone()
}

async fn open(store: &Arc<dyn ObjectStore>) -> SealedFiles {
    SealedFiles::open(Arc::clone(store), budget(), span(), Profile::Portable)
        .await
        .unwrap()
}

fn series(source: &str, metric: &str, points: &[(i64, f64)]) -> FrozenSeries {
    FrozenSeries {
        source: source.into(),
        metric: metric.into(),
        timestamps: points.iter().map(|point| point.0).collect(),
        values: points.iter().map(|point| point.1).collect(),
    }
}

fn frozen(partition: i64, generation: u64, series: Vec<FrozenSeries>) -> Arc<Frozen> {
    Arc::new(Frozen {
        partition,
        generation,
        series,
    })
}

/// All rows of one series in one file.
async fn read_all(file: &SealedFile, source: &str, metric: &str) -> Vec<(i64, f64)> {
    let reader = file.open().await.unwrap();
    let Some(found) = reader.layout.index.find(source, metric) else {
        return Vec::new();
    };
    let mut rows = found.rows.clone();
    let mut points = Vec::new();
    while !rows.is_empty() {
        let read = reader.read(&rows, 10_000).await.unwrap();
        rows.start += read.timestamps().len() as u64;
        points.extend(
            read.timestamps()
                .iter()
                .copied()
                .zip(read.values().iter().copied()),
        );
    }
    points
}

#[tokio::test]
async fn sealed_rows_come_back_bit_by_bit() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let files = open(&store).await;
    let odd = [
        f64::from_bits(0x7ff8_0000_dead_beef),
        f64::from_bits(0x7ff0_0000_0000_0001),
        f64::from_bits(0x7ff0_0000_0000_0002),
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::MIN_POSITIVE / 2.0,
        9_007_199_254_740_993.0,
    ];
    let odd: Vec<_> = (0..).zip(odd).collect();
    let long: Vec<_> = (0..50_000).map(|at| (at, at as f64 / 3.0)).collect();
    let rows = vec![
        series("", "", &odd),
        series("a", "x", &[(i64::MIN, 1.0), (0, 2.0), (i64::MAX, 3.0)]),
        series("ä/b", "long", &long),
        series("ä/b", &"m".repeat(65_536), &[(7, 7.0)]),
    ];
    files.seal(vec![frozen(0, 0, rows)], 0).await.unwrap();

    let again = open(&store).await;
    let version = again.version();
    assert!(version.is_sealed(0, 0) && !version.is_sealed(0, 1) && !version.is_sealed(1, 0));
    let [file] = version.files() else {
        panic!("one file")
    };
    let bits = |points: &[(i64, f64)]| {
        points
            .iter()
            .map(|p| (p.0, p.1.to_bits()))
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(&read_all(file, "", "").await), bits(&odd));
    assert_eq!(
        read_all(file, "a", "x").await,
        [(i64::MIN, 1.0), (0, 2.0), (i64::MAX, 3.0)]
    );
    assert_eq!(read_all(file, "ä/b", "long").await, long);
    assert_eq!(read_all(file, "ä/b", &"m".repeat(65_536)).await, [(7, 7.0)]);
    assert_eq!(read_all(file, "ä/b", "o").await, []);
}
