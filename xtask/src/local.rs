//! `cargo xtask peers local`: the local door beside clients of the S3 endpoint.

use crate::package;
use crate::run::{Failure, Step, root, target};
use crate::tools;

/// Builds the program, the Python package and an example for release, and runs the programs of `bench/local` with `args`.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let packages = [
        "-p",
        "bywash-cli",
        "-p",
        "bywash-python",
        "-p",
        "bywash-client",
    ];
    Step::cargo(["build", "--quiet", "--release"])
        .args(packages)
        .args(["--lib", "--bins", "--example", "warm_read"])
        .run()?;
    let built = target().join("release");
    let tools = tools::ensure()?;
    let python = package::installed(&[&tools.pandas, &tools.python], &built)?;
    for script in ["measure.py", "arena.py"] {
        Step::new(&python)
            .args([root().join("bench/local").join(script)])
            .args(args)
            .env("BYWASH_BIN", built.join("bywash"))
            .env("BYWASH_WARM_READ", built.join("examples/warm_read"))
            .run()?;
    }
    Ok(())
}
