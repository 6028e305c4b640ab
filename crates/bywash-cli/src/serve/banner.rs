//! Startup messages of a server: a few lines for people, the last one for programs.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use bywash::Engine;
use indicatif::BinaryBytes;

use super::data_dir::{Credentials, credentials_path};
use super::settings::{Access, Settings};

/// Max buckets named at start.
const BUCKETS_NAMED: usize = 8;

pub(super) struct Banner<'a> {
    pub(super) settings: &'a Settings,
    pub(super) engine: &'a Engine,
    pub(super) endpoint: &'a str,
    /// URL of the GCS endpoint.
    pub(super) gcs: Option<&'a str>,
    /// Sockets of the local door.
    pub(super) local: &'a [PathBuf],
    pub(super) admin_addr: SocketAddr,
    /// URL of the metrics for others.
    pub(super) metrics: Option<String>,
    pub(super) credentials: Option<&'a Credentials>,
    /// Whether the credentials are new, and so must be shown.
    pub(super) made: bool,
}

impl Banner<'_> {
    /// Writes to standard output. A closed output does not stop the server.
    pub(super) fn print(&self) {
        let mut out = io::stdout().lock();
        if let Err(error) = out
            .write_all(self.text().as_bytes())
            .and_then(|()| out.flush())
        {
            tracing::warn!("cannot write to standard output: {error}");
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!("Bywash {}", env!("CARGO_PKG_VERSION")),
            format!("  s3       {}", self.endpoint),
            format!(
                "  admin    http://{}  (the page; /metrics /stats)",
                self.admin_addr
            ),
        ];
        if let Some(gcs) = self.gcs {
            let keys = match (&self.settings.access, &self.settings.cluster) {
                (Access::Anonymous, _) => "",
                (_, None) => "  (key files: bywash keys create --gcs)",
                (_, Some(_)) => "  (service accounts: [[gcs-account]] of --config)",
            };
            lines.insert(2, format!("  gcs      {gcs}{keys}"));
        }
        if let Some(metrics) = &self.metrics {
            lines.push(format!("  metrics  {metrics}/metrics  (with a key)"));
        }
        if let Some(path) = self.local.last() {
            lines.push(format!("  local    {}", path.display()));
        }
        self.buckets(&mut lines);
        lines.push(format!(
            "  memory   at most {}",
            BinaryBytes(self.engine.stats().budget.limit)
        ));
        if let (Some(disk), Some(stats)) = (&self.settings.disk, self.engine.stats().disk) {
            lines.push(format!(
                "  disk     at most {} in {}, {} blocks there now",
                BinaryBytes(disk.size),
                disk.path.display(),
                stats.blocks
            ));
        }
        if let Some(folder) = &self.settings.fetch_folder {
            lines.push(format!("  fetch    files below {}", folder.display()));
        }
        if let Some(cluster) = &self.settings.cluster {
            lines.push(format!(
                "  cluster  {}, other nodes reach this one at {}",
                cluster.name, cluster.advertise
            ));
        }
        if let Some(bucket) = &self.settings.series_bucket {
            lines.push(format!("  series   files in {bucket}"));
        }
        self.access(&mut lines);
        lines.push(String::new());
        lines.push("Next, in another shell:".to_owned());
        lines.push(format!("  {}", self.env_command()));
        lines.push(format!("  {}", self.first_command()));
        lines.push(String::new());
        let mut ready = format!(
            "ready s3={} admin=http://{}",
            self.endpoint, self.admin_addr
        );
        if let Some(metrics) = &self.metrics {
            ready += &format!(" metrics={metrics}");
        }
        if let Some(gcs) = self.gcs {
            ready += &format!(" gcs={gcs}");
        }
        lines.push(ready);
        lines.join("\n") + "\n"
    }

    fn buckets(&self, lines: &mut Vec<String>) {
        let heading = |index| if index == 0 { "buckets" } else { "" };
        if self.settings.buckets.is_empty() {
            let folder = self.settings.data_dir.join("buckets");
            let names: Vec<_> = self
                .engine
                .buckets()
                .into_iter()
                .map(|bucket| bucket.name)
                .collect();
            let names = match names.len() {
                0 => "none yet".to_owned(),
                1..=BUCKETS_NAMED => names.join(" "),
                count => format!(
                    "{} and {} more",
                    names[..BUCKETS_NAMED].join(" "),
                    count - BUCKETS_NAMED
                ),
            };
            lines.push(format!(
                "  {:<8} {names}, folders of {}",
                heading(0),
                folder.display()
            ));
        }
        for (index, bucket) in self.settings.buckets.iter().take(BUCKETS_NAMED).enumerate() {
            lines.push(format!(
                "  {:<8} {} = {} ({}{})",
                heading(index),
                bucket.name,
                bucket.url,
                bucket.reads.consistency,
                if bucket.read_only { ", read-only" } else { "" }
            ));
        }
        if self.settings.buckets.len() > BUCKETS_NAMED {
            lines.push(format!(
                "  {:<8} and {} more",
                "",
                self.settings.buckets.len() - BUCKETS_NAMED
            ));
        }
    }

    fn access(&self, lines: &mut Vec<String>) {
        let kept = credentials_path(&self.settings.data_dir);
        match (&self.settings.access, self.credentials) {
            (Access::Kept, Some(credentials)) if self.made => {
                lines.push(format!("  access   a new key, kept in {}", kept.display()));
                lines.push(format!("           access key  {}", credentials.access_key));
                lines.push(format!("           secret key  {}", credentials.secret_key));
            }
            (Access::Kept, _) => lines.push(format!("  access   the key in {}", kept.display())),
            (Access::Given(credentials), _) => lines.push(format!(
                "  access   key {}, as given",
                credentials.access_key
            )),
            (Access::Anonymous, _) => {
                lines.push("  access   anonymous: any program of this machine".to_owned())
            }
        }
        for key in &self.settings.keys {
            let buckets = key.scope.buckets.as_ref();
            let buckets = buckets.map_or("all buckets".to_owned(), |names| names.join(" "));
            let what = if key.scope.read_only { "reads" } else { "has" };
            lines.push(format!(
                "           key {} {what} {buckets}",
                key.access_key
            ));
        }
    }

    fn env_command(&self) -> String {
        // The path by which the user started it: under cargo, `bywash` is not in PATH.
        let program = std::env::args()
            .next()
            .unwrap_or_else(|| "bywash".to_owned());
        let folder = &self.settings.data_dir;
        if folder == std::path::Path::new(super::data_dir::DEFAULT_DATA_DIR) {
            format!("eval \"$({program} env)\"")
        } else {
            format!("eval \"$({program} env --data-dir {})\"", folder.display())
        }
    }

    fn first_command(&self) -> String {
        if let Some(bucket) = self.settings.buckets.first() {
            return format!("aws s3 ls s3://{}", bucket.name);
        }
        match self.settings.made_buckets.first() {
            Some(bucket) => format!("aws s3 cp FILE s3://{bucket}/"),
            None => "aws s3 mb s3://first && aws s3 cp FILE s3://first/".to_owned(),
        }
    }
}
