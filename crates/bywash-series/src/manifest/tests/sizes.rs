//! Bytes a point on the data of TSBS's `cpu-only`: ten metrics a host, each a random walk between 0 and 100, reported
//! as integers every 10 s.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::parquet::{FileWriter, WrittenFile};

const METRICS: [&str; 10] = [
    "usage_guest",
    "usage_guest_nice",
    "usage_idle",
    "usage_iowait",
    "usage_irq",
    "usage_nice",
    "usage_softirq",
    "usage_steal",
    "usage_system",
    "usage_user",
];

/// A step of the walk: normally distributed, by Box and Muller.
fn normal(random: &mut StdRng) -> f64 {
    let (length, angle): (f64, f64) = (1.0 - random.random::<f64>(), random.random());
    (-2.0 * length.ln()).sqrt() * (angle * std::f64::consts::TAU).cos()
}

fn hosts(profile: Profile, hosts: usize, points: i64) -> WrittenFile {
    let mut random = StdRng::seed_from_u64(1);
    let mut writer = FileWriter::new(profile).unwrap();
    let timestamps: Vec<i64> = (0..points).map(|n| n * 10_000_000_000).collect();
    for host in 0..hosts {
        let source: Arc<str> = format!("host_{host:04}").into();
        for metric in METRICS {
            let mut level: f64 = random.random_range(0.0..100.0);
            let step = |_: &i64| {
                level = (level + normal(&mut random)).clamp(0.0, 100.0);
                level.trunc()
            };
            let values: Vec<f64> = timestamps.iter().map(step).collect();
            writer
                .append(&source, &metric.into(), &timestamps, &values)
                .unwrap();
        }
    }
    writer.finish().unwrap().unwrap()
}

#[test]
fn tsbs_points_stay_within_their_size() {
    // A day of a few hosts, as after compaction, then two hours of more hosts, as after a flush: shorter series cost
    // more.
    for (profile, points, count, max) in [
        (Profile::Portable, 8640, 4, 0.95),
        (Profile::Portable, 720, 40, 0.95),
        (Profile::Compact, 8640, 4, 0.65),
        (Profile::Compact, 720, 40, 0.65),
    ] {
        let file = hosts(profile, count, points);
        let each = file.bytes.len() as f64 / file.rows as f64;
        println!("{profile:?}, {points} points a series: {each:.3} bytes a point");
        assert!(
            each <= max,
            "{profile:?}, {points} points a series: {each:.3} bytes a point"
        );
    }
}
