//! Proofs of the memory core that need more than the gate has: time, or another toolchain.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;

use crate::run::{Failure, Step};

/// The one target that ThreadSanitizer is tried on. Named outright, so that build scripts and macros stay uninstrumented.
const TSAN_TARGET: &str = "x86_64-unknown-linux-gnu";

/// What `cargo xtask soak` can run for long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Soaked {
    /// The memory core.
    Mem,
}

/// The tests of the memory core itself, in a folder of their own for each way to build them.
fn core_tests(before: &[&str], folder: &str) -> Step {
    Step::cargo(before)
        .args(["-p", "bywash-mem", "--lib", "--target-dir"])
        .args([format!("target/{folder}")])
}

/// Storms on shuttle's schedules: so many of each kind from a seed, or as many as the gate has.
pub(crate) fn shuttle(more: Option<(u64, u64)>) -> Step {
    let step = core_tests(&["test", "--quiet", "--profile", "soak"], "shuttle")
        .env("RUSTFLAGS", "--cfg shuttle");
    match more {
        Some((schedules, seed)) => step
            .args(["storm::schedules::a_storm"])
            .env("BYWASH_SHUTTLE_SCHEDULES", schedules.to_string())
            .env("BYWASH_SOAK_SEED", seed.to_string()),
        None => step,
    }
}

/// The storm on threads, then the storms on schedules.
pub(crate) fn soak(ops: u64, schedules: u64, seed: Option<u64>) -> Result<(), Failure> {
    let seed = seed.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.map_or(1, |now| now.as_secs())
    });
    println!("seed {seed}: {ops} operations on threads");
    core_tests(&["test", "--quiet", "--profile", "soak"], "soak")
        .args(["storm::runs::soak", "--", "--ignored", "--nocapture"])
        .env("BYWASH_SOAK_OPS", ops.to_string())
        .env("BYWASH_SOAK_SEED", seed.to_string())
        .run()?;
    println!("seed {seed}: {schedules} schedules of each kind");
    shuttle(Some((schedules, seed))).run()
}

/// Aliasing, races, leaks: the tests interpreted. Loom and shuttle are not for it.
pub(crate) fn miri(filter: Option<&str>) -> Result<(), Failure> {
    // Through rustup: this toolchain's own cargo takes no `+nightly`.
    let cargo = || Step::new("rustup").args(["run", "nightly", "cargo"]);
    if !cargo().args(["miri", "--version"]).succeeds() {
        return Err(Failure::Missing(
            "Miri is missing: rustup toolchain install nightly --component miri,rust-src"
                .to_owned(),
        ));
    }
    cargo()
        .args(["miri", "test", "-p", "bywash-mem", "--lib"])
        .args(["--target-dir", "target/miri"])
        .args(filter)
        // Deadlines read the clock. Isolation would only refuse that.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .unset(["RUSTC", "RUSTDOC", "CARGO", "RUSTUP_TOOLCHAIN"])
        .run()
}

/// Data races in the real threads of the tests. The sanitizer comes with the toolchain, behind an unstable flag.
pub(crate) fn tsan(filter: Option<&str>) -> Result<(), Failure> {
    let here = Step::new("rustc")
        .args(["--print", "target-libdir", "--target", TSAN_TARGET])
        .output()?;
    let runtime = std::path::Path::new(here.trim()).join("librustc-stable_rt.tsan.a");
    let nightly = runtime.with_file_name("librustc-nightly_rt.tsan.a");
    if !runtime.exists() && !nightly.exists() {
        return Err(Failure::Missing(format!(
            "ThreadSanitizer is missing: this toolchain has no {}; use one for {TSAN_TARGET} from rustup",
            runtime.display()
        )));
    }
    core_tests(&["test", "--target", TSAN_TARGET], "tsan")
        .args(filter)
        .env("RUSTC_BOOTSTRAP", "1")
        // The standard library is not instrumented, which is said to be another ABI.
        .env(
            "RUSTFLAGS",
            "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer",
        )
        .run()
}
