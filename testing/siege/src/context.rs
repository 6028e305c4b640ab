//! Context of a running case: its folder, server, watchers and record.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash_support::group::Group;
use bywash_support::pattern;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::CaseError;
use crate::ceiling::group_limit;
use crate::client::{Account, Client, ClockOffset};
use crate::process::{Process, Setup, descriptor_limit};
use crate::record::{Class, Record, RestState};
use crate::watch::{ProbeTarget, Sample, WatchedServer, Watchers, sample};

/// Length of the probe's object, in bytes.
const PROBE_BYTES: usize = 100_000;
/// Number and length of the objects that fill the server's memory before and after an attack.
const FILL: (u64, usize) = (24, 4 << 20);
/// Number of concurrent clients that fill the memory.
const FILLERS: u64 = 4;
/// Maximum rounds of reads and writes until a server stops growing.
const MAX_FILLS: usize = 10;
/// Maximum time until a server is back in its state before the attack.
const RECOVERY: Duration = Duration::from_secs(30);

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Campaign {
    pub binary: PathBuf,
    pub seed: u64,
    /// Number of distinct objects of the cases on tables; other counts depend on it.
    pub keys: u64,
}

/// Number of distinct objects from which a run exceeds each limit tenfold.
const FULL_RUN_KEYS: u64 = 1_000_000;

impl Campaign {
    /// Returns ten times `limit`, at most the number of distinct objects.
    #[must_use]
    pub fn tenfold(&self, limit: u64) -> u64 {
        (10 * limit).min(self.keys)
    }

    /// Returns how many things to create beyond `limit` that are expensive for the server: ten times the limit, twice in a
    /// small run.
    #[must_use]
    pub fn beyond(&self, limit: u64) -> u64 {
        let factor = if self.is_full() { 10 } else { 2 };
        factor * limit
    }

    /// Returns whether this is a full run, not the small one of the gate.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.keys >= FULL_RUN_KEYS
    }
}

/// Context of one case.
pub struct CaseContext {
    pub campaign: Campaign,
    pub seed: u64,
    pub record: Arc<Record>,
    pub clock_offset: ClockOffset,
    folder: TempDir,
    setup: Setup,
    server: Option<Process>,
    watched: Option<Arc<WatchedServer>>,
    watchers: Option<Watchers>,
    before: Option<Sample>,
    /// Number of objects that fill memory; 0 in a case that does not compare the state before and after.
    fill_objects: u64,
    /// Dropped after the server, because a group with members cannot be removed.
    group: Option<Group>,
}

/// Returns the contents of object `number` of a case.
#[must_use]
pub fn body(seed: u64, number: u64, len: usize) -> Bytes {
    pattern(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15), len)
}

impl CaseContext {
    /// Creates the folder and the record of a case.
    ///
    /// # Errors
    /// If no temporary folder can be created.
    pub fn new(campaign: &Campaign, seed: u64) -> Result<Self, CaseError> {
        Ok(Self {
            campaign: campaign.clone(),
            seed,
            record: Arc::new(Record::default()),
            clock_offset: ClockOffset::real(),
            folder: tempfile::Builder::new().prefix("bywash-siege-").tempdir()?,
            setup: Setup::default(),
            server: None,
            watched: None,
            watchers: None,
            before: None,
            fill_objects: 0,
            group: None,
        })
    }

    /// Returns the folder of the case.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder of a bucket in the server's data folder. Creates it if it is missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn bucket(&self, name: &str) -> Result<PathBuf, CaseError> {
        let path = self.data().join("buckets").join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Returns the server's data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        let data = self.setup.data.clone();
        data.unwrap_or_else(|| self.path().join("data"))
    }

    /// Returns the folder of the server's disk tier.
    #[must_use]
    pub fn disk_folder(&self) -> PathBuf {
        self.setup.disk_folder(self.path())
    }

    /// Sets the size above which no sample of the disk tier may be.
    pub fn set_disk(&mut self, size: u64) {
        self.setup.disk = size;
        if let Some(watched) = &self.watched {
            watched.set_disk(size);
        }
    }

    /// Starts the server of a case that does not compare the state before and after.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn serve(&mut self, setup: Setup) -> Result<SocketAddr, CaseError> {
        self.setup = setup;
        self.create_probe_objects()?;
        let group = &self.setup.group;
        self.group = Group::new(group_limit(self.setup.memory, group.0, group.1));
        self.record.grouped(self.group.is_some());
        self.start("127.0.0.1:0").await
    }

    /// Starts a server, fills its memory, and records its state for the comparison after the attack.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn serve_filled(&mut self, setup: Setup) -> Result<SocketAddr, CaseError> {
        self.fill_objects = FILL.0;
        let address = self.serve(setup).await?;
        self.fill_and_sample().await;
        Ok(address)
    }

    /// Fills the server's memory and records its state before the attack.
    pub async fn fill_and_sample(&mut self) {
        // A server grows until its memory is full and its threads have their buffers.
        for _ in 0..MAX_FILLS {
            let last = sample(self.pid()).map_or(0, |sample| sample.rss);
            self.fill_memory().await;
            self.before = sample(self.pid());
            if self.before.is_some_and(|now| now.rss < last + (1 << 20)) {
                break;
            }
        }
    }

    /// Creates the probe's object and those that fill memory: in a bucket of the data folder or, if the case has origins of
    /// its own, in a separate folder as another origin.
    fn create_probe_objects(&mut self) -> Result<(), CaseError> {
        let origins = self.setup.args.iter().any(|arg| arg.contains("://"));
        let folder = if origins
            || self
                .setup
                .config
                .as_ref()
                .is_some_and(|text| text.contains("[[bucket]]"))
        {
            let folder = self.path().join("probe");
            std::fs::create_dir_all(&folder)?;
            let arg = format!("probe=file://{}", folder.display());
            self.setup.args.insert(0, arg);
            folder
        } else {
            self.bucket("probe")?
        };
        std::fs::write(folder.join("probe"), self.probe_body())?;
        for number in 0..self.fill_objects {
            let path = folder.join(format!("fill-{number}"));
            if !path.exists() {
                std::fs::write(path, body(self.seed, number, FILL.1))?;
            }
        }
        Ok(())
    }

    fn probe_body(&self) -> Bytes {
        body(self.seed, u64::MAX, PROBE_BYTES)
    }

    async fn start(&mut self, address: &str) -> Result<SocketAddr, CaseError> {
        let process = Process::start(
            &self.campaign.binary,
            self.folder.path(),
            &self.setup,
            self.group.as_ref(),
            address,
        )
        .await?;
        let limit = descriptor_limit(process.pid).unwrap_or(self.setup.descriptors.0);
        self.record
            .server(self.setup.memory, limit, process.logged_ceiling);
        let address = process.s3;
        match &self.watched {
            Some(watched) => watched.follow(process.pid, address),
            None => {
                let disk = (self.disk_folder(), self.setup.disk);
                let clock_offset = self.clock_offset;
                let watched = WatchedServer::new(process.pid, address, disk, clock_offset);
                let watched = Arc::new(watched);
                let target = ProbeTarget {
                    path: "/probe/probe".to_owned(),
                    body: self.probe_body(),
                };
                self.watchers = Some(Watchers::start(&watched, &self.record, Some(target))?);
                self.watched = Some(watched);
            }
        }
        self.server = Some(process);
        Ok(address)
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.as_ref().map_or(0, |server| server.pid)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let none = SocketAddr::from(([127, 0, 0, 1], 9));
        self.server.as_ref().map_or(none, |server| server.s3)
    }

    /// Returns the S3 endpoint without a tunnel: that of TLS, if the server speaks it.
    #[must_use]
    pub fn bare_address(&self) -> SocketAddr {
        let none = SocketAddr::from(([127, 0, 0, 1], 9));
        self.server.as_ref().map_or(none, |server| server.bare_s3)
    }

    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        let none = SocketAddr::from(([127, 0, 0, 1], 9));
        self.server.as_ref().map_or(none, |server| server.admin)
    }

    /// Returns the address of the GCS endpoint of a server that has one.
    ///
    /// # Errors
    /// If it has none.
    pub fn gcs(&self) -> Result<SocketAddr, CaseError> {
        let gcs = self.server.as_ref().and_then(|server| server.gcs);
        gcs.ok_or_else(|| CaseError("the server has no GCS endpoint".to_owned()))
    }

    /// Returns a client that respects all limits.
    #[must_use]
    pub fn well_behaved(&self) -> Client {
        let mut client = Client::new(self.address(), Class::WellBehaved, &self.record);
        client.clock_offset = self.clock_offset;
        client
    }

    /// Returns a client that exceeds the named limit or is hostile.
    #[must_use]
    pub fn excessive(&self, what: &'static str) -> Client {
        let mut client = Client::new(self.address(), Class::Excessive(what), &self.record);
        client.clock_offset = self.clock_offset;
        client
    }

    /// Creates a bucket by a request.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn create_bucket(&self, name: &str) -> Result<(), CaseError> {
        let path = format!("/{name}");
        if self.well_behaved().put(&path, &Bytes::new()).await {
            return Ok(());
        }
        Err(CaseError(format!("bucket {name} was not created")))
    }

    /// Runs `count` concurrent clients; each gets its number.
    pub async fn run_concurrently<F, T>(&self, count: u64, each: impl Fn(u64) -> F) -> Vec<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for number in 0..count {
            tasks.spawn(each(number));
        }
        tasks.join_all().await
    }

    /// Sends a signal to the server. Pause the probe before a signal that stops it.
    ///
    /// # Errors
    /// If there is no server.
    pub fn signal(&self, signal: Signal) -> Result<(), CaseError> {
        let Some(server) = &self.server else {
            return Err("no server".into());
        };
        server.signal(signal)
    }

    /// Kills the server and starts it again on the same port.
    ///
    /// # Errors
    /// If it does not start again.
    pub async fn kill_and_restart(&mut self) -> Result<(), CaseError> {
        self.kill_and_restart_after(|_| Ok(())).await
    }

    /// Kills the server, changes its data folder, and starts it again on the same port.
    ///
    /// # Errors
    /// If the change fails, or the server does not start again.
    pub async fn kill_and_restart_after(
        &mut self,
        change: impl FnOnce(&Path) -> Result<(), CaseError>,
    ) -> Result<(), CaseError> {
        let address = self.kill().await?;
        change(&self.data())?;
        self.restart(address).await
    }

    /// Kills the server. Returns its address, for [`Self::restart`].
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(&mut self) -> Result<SocketAddr, CaseError> {
        let address = self.address();
        self.pause().await;
        if let Some(server) = self.server.take() {
            server.kill().await?;
            self.record.kill();
        }
        Ok(address)
    }

    /// Starts a killed server again.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn restart(&mut self, address: SocketAddr) -> Result<(), CaseError> {
        self.start(&address.to_string()).await?;
        self.resume();
        Ok(())
    }

    pub async fn pause(&self) {
        if let Some(watched) = &self.watched {
            watched.pause().await;
        }
    }

    pub fn resume(&self) {
        if let Some(watched) = &self.watched {
            watched.resume();
        }
    }

    /// Returns the number of bytes that the server wrote to standard error.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        let log = self.path().join("stderr.log");
        std::fs::metadata(log).map_or(0, |meta| meta.len())
    }

    /// Fills caches and buffers: reads objects of more than the server's memory, and writes some.
    async fn fill_memory(&self) {
        let seed = self.seed;
        let record = Arc::new(Record::default());
        let address = self.address();
        let clock_offset = self.clock_offset;
        self.run_concurrently(FILLERS, |task| {
            let mut client = Client::new(address, Class::WellBehaved, &record);
            client.clock_offset = clock_offset;
            async move {
                let written = body(seed, task, FILL.1);
                client
                    .put(&format!("/probe/written-{task}"), &written)
                    .await;
                for number in (task..FILL.0).step_by(FILLERS as usize) {
                    let path = format!("/probe/fill-{number}");
                    client.get(&path, &body(seed, number, FILL.1)).await;
                }
            }
        })
        .await;
    }

    /// Waits until the server is back in its state before the attack, and ends it.
    ///
    /// Records the group's peak, with page cache and socket buffers, as a figure.
    pub async fn finish(mut self) -> Arc<Record> {
        if let Some(before) = self.before {
            self.fill_memory().await;
            let began = Instant::now();
            while let Some(after) = sample(self.pid()) {
                self.record.rest_state(RestState { before, after });
                let recovered = crate::judge::judge(&self.record.facts())
                    .iter()
                    .all(|finding| finding.judge != "afterwards");
                if recovered || began.elapsed() > RECOVERY {
                    self.record.figure(
                        "at rest MiB",
                        format!("{} to {}", before.rss >> 20, after.rss >> 20),
                    );
                    self.record.figure(
                        "recovered s",
                        format!("{:.1}", began.elapsed().as_secs_f64()),
                    );
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        self.watchers = None;
        if let Some(mut server) = self.server.take() {
            match server.ended() {
                Some(how) => self.record.died(how),
                None => {
                    let _ = server.kill().await;
                }
            }
        }
        match self.group.as_ref().map(Group::peak) {
            Some(Some(peak)) => self.record.figure("group peak MiB", peak >> 20),
            Some(None) => {}
            None => self.record.figure("control group", "none"),
        }
        if let Some(group) = self.group.take() {
            group.remove().await;
        }
        Arc::clone(&self.record)
    }

    /// Returns the account of an access key.
    #[must_use]
    pub fn account(access_key: &str, secret_key: &str) -> Account {
        Account {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        }
    }
}
