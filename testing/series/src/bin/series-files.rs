//! Writes series for other programs to read: `series-files FOLDER` creates the stores `portable` and `compact` in it.
//!
//! `testing/clients/test_series_files.py` expects these rows: hosts 0 to 19, metrics `load` and `größe`, 5000 rows
//! each, one every 10 s.

use std::path::Path;
use std::sync::Arc;

use bywash::origin::folder::FolderStore;
use bywash_mem::{BlockPool, PoolConfig};
use bywash_series::{Profile, Row, SeriesDb, SeriesOptions};

const HOSTS: i64 = 20;
const ROWS: i64 = 5000;
const STEP: i64 = 10_000_000_000;

/// Values that some readers lose, alternating with ordinary ones.
const ODD: [u64; 6] = [
    0x7ff8_0000_0000_0000,
    0x7ff0_0000_0000_0002,
    0x8000_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x0000_0000_0000_0001,
];

fn value(host: i64, n: i64) -> f64 {
    match usize::try_from(n % 100) {
        Ok(odd) if odd < ODD.len() => f64::from_bits(ODD[odd]),
        _ => (host * 1000 + n) as f64 / 8.0,
    }
}

async fn write(folder: &Path, profile: Profile) -> Result<(), Box<dyn std::error::Error>> {
    let (store, log) = (folder.join("store"), folder.join("log"));
    std::fs::create_dir_all(&store)?;
    let pool = BlockPool::new(PoolConfig::new(64 << 20))?;
    let options = SeriesOptions {
        profile,
        ..SeriesOptions::default()
    };
    let store = Arc::new(FolderStore::open(store)?);
    let db = SeriesDb::open(store, log, pool.budget().clone(), options).await?;
    for host in 0..HOSTS {
        let source = format!("host {host}");
        for metric in ["load", "größe"] {
            let row = |n| Row {
                source: &source,
                metric,
                timestamp: (n - ROWS / 2) * STEP,
                value: value(host, n),
            };
            db.insert_rows(&(0..ROWS).map(row).collect::<Vec<_>>())?;
        }
    }
    db.flush().await?;
    db.close().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("series-files FOLDER")?;
    let folder = Path::new(&folder);
    write(&folder.join("portable"), Profile::Portable).await?;
    write(&folder.join("compact"), Profile::Compact).await
}
