//! Tests of one store that several machines open, one after the other or at once, each with a log of its own.

use bywash_support::faulty_store::{Fault, FaultyStore};
use bywash_support::proof::{Proof, class};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const HOUR: i64 = 3_600_000_000_000;
const MACHINES: usize = 3;
const STEPS: usize = 60;

impl TestDatabase {
    /// A database over the same store with a log of its own, as on another machine.
    fn elsewhere(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            options: self.options.clone(),
            ..Self::new()
        }
    }
}

/// Bits of the values of series `a b`, in memory and in files.
async fn rows(db: &SeriesDb) -> BTreeMap<i64, u64> {
    let mut points = db.iterator("a", "b");
    let mut rows = BTreeMap::new();
    while let Some(point) = points.next().await.unwrap() {
        let before = rows.insert(point.timestamp, point.value.to_bits());
        assert_eq!(before, None, "{} is there twice", point.timestamp);
    }
    rows
}

fn expected(rows: &[(i64, f64)]) -> BTreeMap<i64, u64> {
    let bits = rows.iter().map(|(at, value)| (*at, value.to_bits()));
    bits.collect()
}

fn insert(db: &SeriesDb, rows: &[(i64, f64)]) -> Result<(), SeriesError> {
    let rows = rows.iter().map(|(at, value)| row("a", "b", *at, *value));
    db.insert_rows(&rows.collect::<Vec<_>>())
}

#[tokio::test]
async fn another_machine_reads_flushed_rows_and_the_first_is_refused_until_it_comes_back() {
    let first = TestDatabase::new();
    let second = first.elsewhere();
    let db = first.open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    db.flush().await.unwrap();
    insert(&db, &[(2, 2.0)]).unwrap();

    let other = second.open().await.unwrap();
    assert_eq!(rows(&other).await, expected(&[(1, 1.0)]));
    insert(&other, &[(3, 3.0)]).unwrap();
    other.flush().await.unwrap();
    // The first one does not know yet that it was superseded: its row is in its log.
    insert(&db, &[(4, 4.0)]).unwrap();
    assert!(matches!(db.flush().await, Err(SeriesError::AnotherWriter)));
    for _ in 0..2 {
        let refused = insert(&db, &[(5, 5.0)]);
        assert!(
            matches!(refused, Err(SeriesError::AnotherWriter)),
            "{refused:?}"
        );
    }
    let failure = db.store_failure().unwrap();
    assert!(failure.reason.contains("another process"), "{failure:?}");
    drop(db);

    insert(&other, &[(6, 6.0)]).unwrap();
    let back = first.open().await.unwrap();
    let flushed = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)];
    assert_eq!(rows(&back).await, expected(&flushed));
    back.flush().await.unwrap();
    assert!(matches!(
        other.compact().await,
        Err(SeriesError::AnotherWriter)
    ));
    assert!(matches!(
        insert(&other, &[(7, 7.0)]),
        Err(SeriesError::AnotherWriter)
    ));
    drop((back, other));

    let all = [&flushed[..], &[(6, 6.0)]].concat();
    let back = second.open().await.unwrap();
    assert_eq!(rows(&back).await, expected(&all));
    back.flush().await.unwrap();
    drop(back);
    let third = first.elsewhere().open().await.unwrap();
    assert_eq!(rows(&third).await, expected(&all));
    assert_eq!(sealed_rows(&third), 5, "each once");
}

#[tokio::test]
async fn row_of_a_log_that_comes_back_is_as_old_as_its_write() {
    for overwritten in [false, true] {
        let first = TestDatabase::new();
        let second = first.elsewhere();
        let db = first.open().await.unwrap();
        insert(&db, &[(1, 1.0), (2, 1.0)]).unwrap();
        db.flush().await.unwrap();
        insert(&db, &[(1, 2.0)]).unwrap();
        drop(db);
        let other = second.open().await.unwrap();
        let at = if overwritten { 1 } else { 2 };
        insert(&other, &[(at, 3.0)]).unwrap();
        other.flush().await.unwrap();
        // A merged file would count as newer than the row that is in the first log only.
        other.compact().await.unwrap();
        assert_eq!(other.stats().files, 2);
        drop(other);
        let back = first.open().await.unwrap();
        let rows_then = match overwritten {
            true => expected(&[(1, 3.0), (2, 1.0)]),
            false => expected(&[(1, 2.0), (2, 3.0)]),
        };
        assert_eq!(rows(&back).await, rows_then, "overwritten: {overwritten}");
        back.flush().await.unwrap();
        assert_eq!(rows(&back).await, rows_then, "overwritten: {overwritten}");
    }
}

#[tokio::test]
async fn files_are_merged_again_once_no_log_can_come_back() {
    let database = TestDatabase::new();
    let open = async |database: &TestDatabase, at: i64| {
        let db = database.open().await.unwrap();
        insert(&db, &[(at, 1.0)]).unwrap();
        db.flush().await.unwrap();
        db
    };
    drop(open(&database, 0).await);
    let mut machines = Vec::new();
    for at in 1..=9 {
        machines.push(database.elsewhere());
        let db = open(&machines[at - 1], at as i64).await;
        db.compact().await.unwrap();
        let apart = db.stats().files;
        assert_eq!(apart == at as u64 + 1, at < 9, "{apart} files of {at}");
    }
    let refused = database.open().await;
    assert!(
        matches!(refused, Err(SeriesError::ForeignLog { .. })),
        "{refused:?}"
    );
    let back = machines[0].open().await.unwrap();
    assert_eq!(rows(&back).await.len(), 10);
}

#[tokio::test]
async fn log_of_another_store_is_refused_and_stays() {
    let mut database = TestDatabase::new();
    let db = database.open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    drop(db);
    let own = Arc::clone(&database.store);
    let other = TestDatabase::new();
    drop(other.open().await.unwrap());
    for foreign in [Arc::new(InMemory::new()), Arc::clone(&other.store)] {
        database.store = foreign;
        let refused = database.open().await;
        assert!(
            matches!(refused, Err(SeriesError::ForeignLog { .. })),
            "{refused:?}"
        );
    }
    // The refused one did not take the store over.
    drop(other.open().await.unwrap());
    database.store = own;
    let db = database.open().await.unwrap();
    assert_eq!(rows(&db).await, expected(&[(1, 1.0)]));
}

/// Whose rows are in the files of a shared store is not known of a log without ids.
#[tokio::test]
async fn log_of_an_older_build_is_refused_for_a_shared_store_and_taken_for_its_own() {
    let mut database = TestDatabase::new();
    let db = database.open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    drop(db);
    let forget_ids = |database: &TestDatabase| {
        let path = database.folder.path().join("lock");
        let lock = fs::File::options().write(true).open(path).unwrap();
        lock.set_len(0).unwrap();
    };
    forget_ids(&database);
    database.options.shared_store = true;
    let own = Arc::clone(&database.store);
    for store in [Arc::clone(&own), Arc::new(InMemory::new())] {
        database.store = store;
        let refused = database.open().await;
        assert!(
            matches!(refused, Err(SeriesError::ForeignLog { .. })),
            "{refused:?}"
        );
    }
    (database.options.shared_store, database.store) = (false, own);
    let db = database.open().await.unwrap();
    assert_eq!(rows(&db).await, expected(&[(1, 1.0)]));
}

#[tokio::test]
async fn copied_log_is_refused_once_the_other_copy_was_used() {
    let original = TestDatabase::new();
    let db = original.open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    drop(db);
    let copy = original.elsewhere();
    for entry in fs::read_dir(original.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let db = copy.open().await.unwrap();
    assert_eq!(rows(&db).await, expected(&[(1, 1.0)]));
    db.flush().await.unwrap();
    drop(db);
    let refused = original.open().await;
    assert!(
        matches!(refused, Err(SeriesError::ForeignLog { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn log_that_cannot_be_replayed_leaves_the_store_with_its_writer() {
    let first = TestDatabase::new();
    let second = first.elsewhere();
    let db = first.open().await.unwrap();
    for at in 0..1000 {
        insert(&db, &[(at * HOUR, 1.0)]).unwrap();
    }
    drop(db);
    let other = second.open().await.unwrap();
    let segment = first.segments().remove(0);
    let whole = fs::read(&segment).unwrap();
    let mut damaged = whole.clone();
    damaged[1000] ^= 1;
    fs::write(&segment, damaged).unwrap();
    let refused = first.open().await;
    assert!(
        matches!(refused, Err(SeriesError::DamagedLog { .. })),
        "{refused:?}"
    );
    fs::write(&segment, whole).unwrap();
    insert(&other, &[(-1, 2.0)]).unwrap();
    other.flush().await.unwrap();
    drop(other);
    let back = first.open().await.unwrap();
    assert_eq!(rows(&back).await.len(), 1001);
}

#[tokio::test]
async fn prepared_database_leaves_the_store_with_its_writer_until_it_takes_over() {
    let first = TestDatabase::new();
    let second = first.elsewhere();
    let db = first.open().await.unwrap();
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let prepare = || {
        SeriesDb::prepare(
            Arc::clone(&second.store) as Arc<dyn ObjectStore>,
            second.folder.path(),
            pool.budget().clone(),
            second.options.clone(),
        )
    };
    let prepared = prepare().await.unwrap();
    assert!(matches!(prepare().await, Err(SeriesError::Locked { .. })));
    insert(&db, &[(1, 1.0)]).unwrap();
    db.flush().await.unwrap();
    drop(prepared);
    let prepared = prepare().await.unwrap();
    insert(&db, &[(2, 2.0)]).unwrap();
    db.flush().await.unwrap();
    let other = prepared.take_over().await.unwrap();
    insert(&db, &[(3, 3.0)]).unwrap();
    assert!(matches!(db.flush().await, Err(SeriesError::AnotherWriter)));
    assert_eq!(rows(&other).await, expected(&[(1, 1.0), (2, 2.0)]));
}

/// Ids of the writers in the lock file.
fn ids(database: &TestDatabase) -> usize {
    let lock = fs::read_to_string(database.folder.path().join("lock"));
    lock.unwrap().lines().count()
}

#[tokio::test]
async fn log_names_only_its_last_writer_after_a_takeover() {
    let database = TestDatabase::new();
    for _ in 0..3 {
        drop(database.open().await.unwrap());
        assert_eq!(ids(&database), 1);
    }
}

/// The writer before flushes between the read of the manifest and the takeover.
#[tokio::test]
async fn store_whose_writer_flushes_during_the_replay_is_taken_over() {
    use crate::manifest::{Opening, new_writer};
    let database = TestDatabase::new();
    let db = database.open().await.unwrap();
    let store = Arc::clone(&database.store) as Arc<dyn ObjectStore>;
    let files = &db.0.files.0;
    let format = (files.width, files.profile);
    let opening = Opening::begin(store, files.budget.clone(), format, new_writer(), None);
    let opening = opening.await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    db.flush().await.unwrap();
    let taken = opening.take_over().await.unwrap();
    assert_eq!(taken.version().files().len(), 1);
    insert(&db, &[(2, 2.0)]).unwrap();
    assert!(matches!(db.flush().await, Err(SeriesError::AnotherWriter)));
}

/// A crash may leave a log with the id of a writer that never came into a manifest.
#[tokio::test]
async fn crash_before_or_after_the_manifest_leaves_the_log_known() {
    let faulty = FaultyStore::default();
    let database = TestDatabase::new();
    let open = || open_over(faulty.shared(), &database);
    let db = open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    drop(db);
    let none = Fault::DelayResponse(std::time::Duration::ZERO);
    // The second put is the one that must be refused.
    for faults in [&[Fault::Fail][..], &[none, Fault::Fail], &[Fault::Fail]] {
        for fault in faults {
            faulty.fault("put", "manifest", *fault);
        }
        let failed = open().await;
        assert!(
            matches!(failed, Err(SeriesError::Store { .. })),
            "{failed:?}"
        );
    }
    let db = open().await.unwrap();
    assert_eq!(rows(&db).await, expected(&[(1, 1.0)]));
}

#[tokio::test]
async fn database_is_read_beside_its_writer() {
    let database = TestDatabase::new();
    let store = || Arc::clone(&database.store) as Arc<dyn ObjectStore>;
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let open = || SeriesDb::open_to_read(store(), pool.budget().clone());
    assert!(matches!(open().await, Err(SeriesError::NoDatabase)));
    let db = database.open().await.unwrap();
    insert(&db, &[(1, 1.0)]).unwrap();
    db.flush().await.unwrap();
    insert(&db, &[(2, 2.0)]).unwrap();
    let reader = open().await.unwrap();
    assert_eq!(rows(&reader).await, expected(&[(1, 1.0)]));
    assert_eq!(reader.sources(ALL).await.unwrap(), ["a"]);
    assert!(matches!(reader.flush().await, Err(SeriesError::Closed)));
    assert!(reader.compact().await.is_err());
    assert!(insert(&reader, &[(3, 3.0)]).is_err());
    reader.close().await.unwrap();
    // The writer continues.
    db.flush().await.unwrap();
    db.compact().await.unwrap();
    assert_eq!(rows(&open().await.unwrap()).await.len(), 2);
}

/// Opens a database over this store, with folder and options of `database`. Its worker has closed the first generation then: a row written
/// before would be of another generation than a test that looks after the write finds.
pub(super) async fn open_over(
    store: Arc<dyn ObjectStore>,
    database: &TestDatabase,
) -> Result<SeriesDb, SeriesError> {
    let pool = BlockPool::new(PoolConfig::new(64 << 20)).unwrap();
    let folder = database.folder.path().to_owned();
    let (budget, options) = (pool.budget().clone(), database.options.clone());
    let db = SeriesDb::open(store, folder, budget, options).await?;
    while db.stats().flushes + db.stats().failed_flushes == 0 {
        tokio::task::yield_now().await;
    }
    Ok(db)
}

/// A clock that stands still.
#[derive(Debug)]
struct At(i64);

impl crate::Clock for At {
    fn now(&self) -> i64 {
        self.0
    }
}

/// A time after the days of the rows, which are compacted then.
const LATER: i64 = 10 * 24 * HOUR;
const WIDTH: i64 = 2 * HOUR;

/// A database that compacts whole days, and flushes no partition because of its age.
fn after_the_days() -> TestDatabase {
    let mut database = TestDatabase::new();
    database.options.clock = Arc::new(At(LATER));
    database.options.out_of_order_window = std::time::Duration::from_secs(365 * 24 * 3600);
    database
}

/// Partition 1 has a file, and in the log a newer row of the same timestamp; partition 0 has a newer file than both. Its files
/// are not put together before the row is in one.
async fn flush_in_part(db: &SeriesDb, store: &FaultyStore) {
    insert(db, &[(WIDTH, 1.0)]).unwrap();
    db.flush().await.unwrap();
    insert(db, &[(WIDTH, 2.0)]).unwrap();
    // Ends the generation, and flushes nothing.
    store.fault("put", "files/1-", Fault::Fail);
    db.flush().await.unwrap_err();
    insert(db, &[(0, 3.0)]).unwrap();
    store.fault("put", "files/1-", Fault::Fail);
    db.flush().await.unwrap_err();
    store.clear_faults();
    assert_eq!(db.stats().files, 2);
}

const IN_PART: [(i64, f64); 2] = [(0, 3.0), (WIDTH, 2.0)];

#[tokio::test]
async fn day_is_not_compacted_over_rows_that_a_flush_has_left_in_memory() {
    let (store, database) = (FaultyStore::default(), after_the_days());
    let db = open_over(store.shared(), &database).await.unwrap();
    flush_in_part(&db, &store).await;
    assert_eq!(rows(&db).await, expected(&IN_PART));
    db.compact().await.unwrap();
    assert_eq!(rows(&db).await, expected(&IN_PART));
    db.flush().await.unwrap();
    assert_eq!(rows(&db).await, expected(&IN_PART));
    db.compact().await.unwrap();
    assert_eq!((db.stats().files, rows(&db).await), (1, expected(&IN_PART)));
}

#[tokio::test]
async fn day_is_not_compacted_over_rows_in_the_log_of_another_machine() {
    let (store, first) = (FaultyStore::default(), after_the_days());
    let db = open_over(store.shared(), &first).await.unwrap();
    flush_in_part(&db, &store).await;
    drop(db);
    let second = after_the_days();
    let other = open_over(store.shared(), &second).await.unwrap();
    assert_eq!(rows(&other).await, expected(&[(0, 3.0), (WIDTH, 1.0)]));
    other.compact().await.unwrap();
    drop(other);
    let back = open_over(store.shared(), &first).await.unwrap();
    assert_eq!(rows(&back).await, expected(&IN_PART));
    back.flush().await.unwrap();
    back.compact().await.unwrap();
    let files = back.stats().files;
    assert_eq!((files, rows(&back).await), (1, expected(&IN_PART)));
}

/// A row of the simulation: epoch and number of its write, by which rows of one timestamp are ordered, and its value.
type Written = (u64, u64, u64);

/// Paths of the files of each partition of the simulation.
const PARTS: [&str; 6] = [
    "files/-3-",
    "files/-2-",
    "files/-1-",
    "files/0-",
    "files/1-",
    "files/2-",
];

/// Random writes, flushes, compactions, crashes and changes of the machine, with failing requests, compared with a map.
struct Simulation {
    random: StdRng,
    faulty: FaultyStore,
    machines: Vec<TestDatabase>,
    /// Rows that are in the log of each machine only, with their generations.
    unflushed: Vec<Vec<(i64, u64, Written)>>,
    /// Rows in files.
    flushed: BTreeMap<i64, Written>,
    active: usize,
    db: SeriesDb,
    /// A machine that does not know yet that another one has taken its store over, and its epoch.
    stale: Option<(usize, SeriesDb, u64)>,
    epoch: u64,
    writes: u64,
    /// Faults of each class.
    faults: BTreeMap<String, u64>,
}

/// Classes of faults of the simulation.
const CLASSES: [&str; 7] = [
    "fail",
    "lose response",
    "fail of the read that follows",
    "flush in part",
    "kill",
    "takeover",
    "write after a takeover",
];

impl Simulation {
    fn note(&mut self, class: impl Into<String>) {
        *self.faults.entry(class.into()).or_default() += 1;
    }

    async fn new(seed: u64) -> Self {
        let faulty = FaultyStore::default();
        let machines: Vec<_> = (0..MACHINES).map(|_| after_the_days()).collect();
        let db = open_over(faulty.shared(), &machines[0]).await.unwrap();
        Self {
            random: StdRng::seed_from_u64(seed),
            faulty,
            unflushed: machines.iter().map(|_| Vec::new()).collect(),
            machines,
            flushed: BTreeMap::new(),
            active: 0,
            db,
            stale: None,
            epoch: 0,
            writes: 0,
            faults: BTreeMap::new(),
        }
    }

    fn write(&mut self, machine: usize, db: &SeriesDb, epoch: u64) {
        let from = self.random.random_range(-3..3) * WIDTH;
        for _ in 0..self.random.random_range(1..20) {
            self.writes += 1;
            let at = from + self.random.random_range(0..10);
            let value = self.writes as f64;
            insert(db, &[(at, value)]).unwrap();
            let written = (epoch, self.writes, value.to_bits());
            self.unflushed[machine].push((at, db.0.gate.current(), written));
        }
    }

    fn fail_sometimes(&mut self) {
        if self.random.random_bool(0.4) {
            let part = ["manifest", "files/"][self.random.random_range(0..2)];
            let fault = [Fault::Fail, Fault::LoseResponse][self.random.random_range(0..2)];
            self.faulty.fault("put", part, fault);
            self.note(class(fault));
            if part == "manifest" && self.random.random_bool(0.5) {
                self.note(CLASSES[2]);
                self.faulty.fault("get", "manifest", Fault::Fail);
            }
        }
    }

    /// Flushes until it succeeds.
    async fn flush(&mut self) {
        self.fail_sometimes();
        while self.db.flush().await.is_err() {}
        self.faulty.clear_faults();
        self.move_flushed();
        assert!(self.unflushed[self.active].is_empty());
    }

    /// Flushes the partitions before a random one.
    async fn flush_in_part(&mut self) {
        let part = PARTS[self.random.random_range(0..PARTS.len())];
        self.faulty.fault("put", part, Fault::Fail);
        self.note(CLASSES[3]);
        let _ = self.db.flush().await;
        self.faulty.clear_faults();
        self.move_flushed();
    }

    /// Learns which rows are in files now.
    fn move_flushed(&mut self) {
        let version = self.db.0.files.version();
        let is_flushed = |at: i64, generation| version.is_flushed(at.div_euclid(WIDTH), generation);
        let rows = &mut self.unflushed[self.active];
        for (at, _, written) in rows.extract_if(.., |(at, of, _)| is_flushed(*at, *of)) {
            let known = self.flushed.entry(at).or_insert(written);
            *known = written.max(*known);
        }
    }

    /// Kills the active machine, or leaves it to itself if another one starts, and starts `machine`.
    async fn start(&mut self, machine: usize) {
        let leave = machine != self.active && self.random.random_bool(0.5);
        self.note(CLASSES[if leave { 5 } else { 4 }]);
        // Reads only: the log of the machine that is killed is free then.
        let budget = self.db.0.files.0.budget.clone();
        let reader = SeriesDb::open_to_read(self.faulty.shared(), budget);
        let before = std::mem::replace(&mut self.db, reader.await.unwrap());
        self.stale = leave.then_some((self.active, before, self.epoch));
        let opened = open_over(self.faulty.shared(), &self.machines[machine]).await;
        self.db = opened.unwrap();
        self.epoch += u64::from(machine != self.active);
        self.active = machine;
    }

    /// The machine that was left to itself writes on, until it learns that it must not.
    async fn write_on(&mut self) {
        let Some((machine, db, epoch)) = self.stale.take() else {
            return;
        };
        self.note(CLASSES[6]);
        self.write(machine, &db, epoch);
        assert!(matches!(db.flush().await, Err(SeriesError::AnotherWriter)));
        let refused = insert(&db, &[(0, 0.0)]);
        assert!(
            matches!(refused, Err(SeriesError::AnotherWriter)),
            "{refused:?}"
        );
    }

    async fn step(&mut self) {
        match self.random.random_range(0..13) {
            0 => {
                self.db.0.gate.close();
            }
            1 => self.flush().await,
            2 => self.flush_in_part().await,
            3 | 12 => {
                self.fail_sometimes();
                // A failed compaction has no effect that readers see.
                let _ = self.db.compact().await;
                self.faulty.clear_faults();
            }
            4 | 5 => {
                let machine = self.random.random_range(0..MACHINES);
                self.start(machine).await;
            }
            6 => self.write_on().await,
            _ => {
                let db = self.db.clone();
                self.write(self.active, &db, self.epoch);
            }
        }
    }

    async fn compare(&self) {
        let mut visible = self.flushed.clone();
        for &(at, _, written) in &self.unflushed[self.active] {
            let known = visible.entry(at).or_insert(written);
            *known = written.max(*known);
        }
        let visible = visible.into_iter().map(|(at, (.., value))| (at, value));
        assert_eq!(rows(&self.db).await, visible.collect());
    }
}

#[tokio::test]
async fn rows_of_several_machines_match_a_map_under_takeovers_and_failures() {
    let repeat = "cargo test -p bywash-series --lib rows_of_several_machines";
    let proof = Proof::new("series-takeover", repeat, 0..6, &CLASSES);
    while let Some(mut trial) = proof.next() {
        let mut run = Simulation::new(trial.seed()).await;
        for step in 0..STEPS {
            run.step().await;
            if step % 3 == 0 {
                run.compare().await;
            }
        }
        // In the end each machine returns, and no row is lost.
        for machine in 0..MACHINES {
            run.start(machine).await;
            run.flush().await;
            run.compare().await;
        }
        assert!(run.unflushed.iter().all(Vec::is_empty));
        trial.operations(run.writes);
        for (class, hits) in run.faults {
            trial.fault(class, hits);
        }
    }
}
