//! Reads through the Rust API in a separate process, which reads cells and writes results as JSON lines.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use bywash::{Bucket, Consistency, Engine, Origin, OriginUrl};
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::time::Instant;

use crate::Failure;
use crate::read::load::{Cell, Load, Sample, consume, drive};

/// Settings of the worker.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The engine's memory ceiling in bytes
    #[arg(long)]
    memory: u64,
}

/// One order: a cell, and whether to bypass the engine.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Order {
    pub(crate) cell: Cell,
    pub(crate) direct: bool,
}

/// Works until standard input ends.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runtime = crate::runtime()?;
    let _entered = runtime.enter();
    let url: OriginUrl = "s3://bench".parse()?;
    let origin = url.open()?;
    let engine = Engine::builder().memory(args.memory).build()?;
    let bucket: Bucket = engine.mount("bench", Arc::clone(&origin), Consistency::default())?;
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let direct: Arc<dyn ObjectStore> = Arc::<dyn Origin>::clone(&origin);
        let store: Arc<dyn ObjectStore> = if order.direct {
            direct
        } else {
            Arc::new(bucket.clone())
        };
        let load: Load = runtime.block_on(drive(&order.cell, |_client| {
            let store = Arc::clone(&store);
            async move { Ok(move |key: String| read(Arc::clone(&store), key)) }
        }))?;
        println!("{}", serde_json::to_string(&load)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

async fn read(store: Arc<dyn ObjectStore>, key: String) -> Result<Sample, Failure> {
    let begun = Instant::now();
    let mut body = store.get(&Path::from(key)).await?.into_stream();
    let (mut bytes, mut first_byte) = (0, None);
    while let Some(piece) = body.next().await {
        first_byte.get_or_insert_with(|| begun.elapsed());
        bytes += consume(&piece?);
    }
    Ok(Sample {
        bytes,
        first_byte: first_byte.unwrap_or_else(|| begun.elapsed()),
    })
}
