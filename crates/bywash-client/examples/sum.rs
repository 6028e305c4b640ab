//! Sums the bytes of an object in the memory of this user's server: `cargo run --example sum --
//! BUCKET KEY [SECONDS]`. Holds the object for `SECONDS` afterwards.

use std::time::Duration;

use bywash_client::Client;

#[allow(clippy::disallowed_methods, reason = "an example that holds a lease")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(bucket), Some(key)) = (words.next(), words.next()) else {
        return Err("write: sum BUCKET KEY [SECONDS]".into());
    };
    let object = Client::connect()?.bucket(&bucket).get(&key)?;
    let sum: u64 = object
        .bytes
        .segments()
        .flatten()
        .map(|byte| u64::from(*byte))
        .sum();
    println!(
        "{} bytes, sum {sum}, hit {}, leased {}",
        object.bytes.len(),
        object.hit,
        object.bytes.is_leased()
    );
    if let Some(seconds) = words.next() {
        std::thread::sleep(Duration::from_secs(seconds.parse()?));
    }
    Ok(())
}
