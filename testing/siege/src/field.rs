//! Where one case takes place: its folder, its server, its watchers and its record.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bywash_sim::pattern;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::Trouble;
use crate::ceiling::group_limit;
use crate::client::{Account, Client, Times};
use crate::group::Group;
use crate::process::{Process, Setup, descriptor_limit};
use crate::record::{Class, Record, Rest};
use crate::watch::{Sample, Target, Watched, Watchers, sample};

/// Bytes of the probe's object.
const PROBE_BYTES: usize = 100_000;
/// Objects, and bytes of each, that fill the server's memory before and after an attack.
const FILL: (u64, usize) = (24, 4 << 20);
/// Clients that do so at once.
const FILLERS: u64 = 4;
/// Max rounds of reads and writes until a server grows no more.
const MAX_FILLS: usize = 10;
/// Max time in which a server must be back to what it was.
const RECOVERY: Duration = Duration::from_secs(30);

/// What a whole run has in common.
#[derive(Debug, Clone)]
pub struct Campaign {
    pub binary: PathBuf,
    pub seed: u64,
    /// Distinct objects of the cases on tables; other counts follow from it.
    pub keys: u64,
}

/// Distinct objects from which on a campaign goes ten times past every limit.
const WHOLE_CAMPAIGN: u64 = 1_000_000;

impl Campaign {
    /// Ten times `limit` things, bounded by the campaign's own number.
    #[must_use]
    pub fn tenfold(&self, limit: u64) -> u64 {
        (10 * limit).min(self.keys)
    }

    /// Ten times `limit` things that take the server long to make, in a small campaign twice as many as the limit.
    #[must_use]
    pub fn past(&self, limit: u64) -> u64 {
        let times = if self.is_whole() { 10 } else { 2 };
        times * limit
    }

    /// Whether it is as large as time allows, and not the one of the gate.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.keys >= WHOLE_CAMPAIGN
    }
}

/// The place of one case.
pub struct Field {
    pub campaign: Campaign,
    pub seed: u64,
    pub record: Arc<Record>,
    pub times: Times,
    folder: TempDir,
    setup: Setup,
    server: Option<Process>,
    watched: Option<Arc<Watched>>,
    watchers: Option<Watchers>,
    before: Option<Sample>,
    /// Objects that fill memory; none in a case without a state before and after.
    fills: u64,
    /// Ends after the server: a group with members cannot be removed.
    group: Option<Group>,
}

/// The bytes of object `number` of a case.
#[must_use]
pub fn body(seed: u64, number: u64, len: usize) -> Bytes {
    pattern(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15), len)
}

impl Field {
    /// # Errors
    /// If there is no room for temporary files.
    pub fn new(campaign: &Campaign, seed: u64) -> Result<Self, Trouble> {
        Ok(Self {
            campaign: campaign.clone(),
            seed,
            record: Arc::new(Record::default()),
            times: Times::real(),
            folder: tempfile::Builder::new().prefix("bywash-siege-").tempdir()?,
            setup: Setup::default(),
            server: None,
            watched: None,
            watchers: None,
            before: None,
            fills: 0,
            group: None,
        })
    }

    /// The case's own folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of a bucket of the server's own data folder, made if missing.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn bucket(&self, name: &str) -> Result<PathBuf, Trouble> {
        let path = self.data().join("buckets").join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// The server's data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        let data = self.setup.data.clone();
        data.unwrap_or_else(|| self.path().join("data"))
    }

    /// Starts the server of a case that needs no state before and after.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn serve(&mut self, setup: Setup) -> Result<SocketAddr, Trouble> {
        self.setup = setup;
        self.plant_probe()?;
        let group = &self.setup.group;
        self.group = Group::new(group_limit(self.setup.memory, group.0, group.1));
        self.record.grouped(self.group.is_some());
        self.start("127.0.0.1:0").await
    }

    /// Starts a server, fills its memory, and keeps its state to compare it with that after the attack.
    ///
    /// # Errors
    /// If it does not start.
    pub async fn serve_load(&mut self, setup: Setup) -> Result<SocketAddr, Trouble> {
        self.fills = FILL.0;
        let address = self.serve(setup).await?;
        self.settle().await;
        Ok(address)
    }

    /// Fills the server's memory and keeps its state as that before the attack.
    pub async fn settle(&mut self) {
        // Until its memory is full and its threads have their buffers, reads and writes make a server larger.
        for _ in 0..MAX_FILLS {
            let last = sample(self.pid()).map_or(0, |sample| sample.rss);
            self.fill().await;
            self.before = sample(self.pid());
            if self.before.is_some_and(|now| now.rss < last + (1 << 20)) {
                break;
            }
        }
    }

    /// The probe's object, and those that fill memory, lie where the server finds them: in a bucket of its data folder, or
    /// beside the case's own origins in a folder of theirs.
    fn plant_probe(&mut self) -> Result<(), Trouble> {
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
        for number in 0..self.fills {
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

    async fn start(&mut self, address: &str) -> Result<SocketAddr, Trouble> {
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
                let watched = Arc::new(Watched::new(process.pid, address, self.times));
                let target = Target {
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

    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        let none = SocketAddr::from(([127, 0, 0, 1], 9));
        self.server.as_ref().map_or(none, |server| server.admin)
    }

    /// A client within every limit.
    #[must_use]
    pub fn well(&self) -> Client {
        let mut client = Client::new(self.address(), Class::Well, &self.record);
        client.times = self.times;
        client
    }

    /// A client past the limit named, or a hostile one.
    #[must_use]
    pub fn past(&self, what: &'static str) -> Client {
        let mut client = Client::new(self.address(), Class::Past(what), &self.record);
        client.times = self.times;
        client
    }

    /// Makes a bucket by the protocol.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn make_bucket(&self, name: &str) -> Result<(), Trouble> {
        let path = format!("/{name}");
        if self.well().put(&path, &Bytes::new()).await {
            return Ok(());
        }
        Err(Trouble(format!("bucket {name} was not made")))
    }

    /// Runs `count` clients at once; each gets its number.
    pub async fn crowd<F, T>(&self, count: u64, each: impl Fn(u64) -> F) -> Vec<T>
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

    /// Sends the server a signal; no probe is under way while it is stopped.
    ///
    /// # Errors
    /// If there is none.
    pub async fn signal(&self, name: &str) -> Result<(), Trouble> {
        let Some(server) = &self.server else {
            return Err("no server".into());
        };
        server.signal(name).await
    }

    /// Kills the server and starts it again on the same port.
    ///
    /// # Errors
    /// If it does not start again.
    pub async fn kill_and_restart(&mut self) -> Result<(), Trouble> {
        self.kill_and_restart_after(|_| Ok(())).await
    }

    /// Kills the server, changes its data folder, and starts it again on the same port.
    ///
    /// # Errors
    /// If the change fails, or the server does not start again.
    pub async fn kill_and_restart_after(
        &mut self,
        change: impl FnOnce(&Path) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let address = self.address();
        self.pause().await;
        if let Some(server) = self.server.take() {
            server.kill().await?;
            self.record.kill();
        }
        change(&self.data())?;
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

    /// The bytes the server has written to standard error.
    #[must_use]
    pub fn logged(&self) -> u64 {
        let log = self.path().join("stderr.log");
        std::fs::metadata(log).map_or(0, |meta| meta.len())
    }

    /// Reads objects of more than the server's memory, and writes some, so that what it may keep is kept.
    async fn fill(&self) {
        let seed = self.seed;
        let record = Arc::new(Record::default());
        let address = self.address();
        let times = self.times;
        self.crowd(FILLERS, |task| {
            let mut client = Client::new(address, Class::Well, &record);
            client.times = times;
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

    /// Waits until the server is back to what it was before, ends it, and returns when it is gone.
    ///
    /// The group's peak, with page cache and socket buffers, is written down as a figure.
    pub async fn finish(mut self) -> Arc<Record> {
        if let Some(before) = self.before {
            self.fill().await;
            let began = Instant::now();
            while let Some(after) = sample(self.pid()) {
                self.record.rest(Rest { before, after });
                let back = crate::judge::judge(&self.record.facts())
                    .iter()
                    .all(|finding| finding.judge != "afterwards");
                if back || began.elapsed() > RECOVERY {
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

    /// Another key of the server.
    #[must_use]
    pub fn account(access_key: &str, secret_key: &str) -> Account {
        Account {
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
        }
    }
}
