//! Reads of a database with damaged and missing files.

use bywash_series::{Aggregate, LeftOut, Selector};
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;

fn objects(left_out: &LeftOut) -> Vec<String> {
    left_out
        .iter()
        .map(|(object, _)| object.to_owned())
        .collect()
}

#[tokio::test]
async fn read_answers_without_damaged_and_missing_files_and_names_them() {
    let database = TestDatabase::new();
    let db = database.open().await;
    // The first flush of the worker would divide the rows of a file.
    db.flush().await.unwrap();
    for hour in 0..3_i64 {
        insert(&db, "a", &format!("{hour}"), &[(hour * HOUR, 1.0)]);
        insert(&db, "a", "all", &[(hour * HOUR, 1.0)]);
        db.flush().await.unwrap();
    }
    db.close().await.unwrap();
    drop(db);
    let files =
        futures::TryStreamExt::try_collect::<Vec<_>>(database.store.list(Some(&"files".into())));
    let mut files = files.await.unwrap();
    files.sort_by(|one, next| one.location.cmp(&next.location));
    assert_eq!(files.len(), 3);
    let (damaged, missing) = (&files[0].location, &files[1].location);
    database
        .store
        .put(damaged, vec![7; files[0].size as usize].into())
        .await
        .unwrap();
    database.store.delete(missing).await.unwrap();

    let db = database.open().await;
    let all = Selector::all();
    assert!(db.query(&all, ALL, None, Aggregate::Last).await.is_err());
    let read = db.query_readable(100, &all, ALL, None, Aggregate::Last);
    let (found, left_out) = read.await.unwrap();
    let mut lacking = objects(&left_out);
    lacking.sort();
    assert_eq!(lacking, [damaged.to_string(), missing.to_string()]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|series| series.points.len() == 1));
    let (names, left_out) = db.list_readable(&all, ALL).await.unwrap();
    assert_eq!((names.len(), objects(&left_out).len()), (2, 2));
    // A read that needs none of these files lacks none.
    let later = 2 * HOUR..=i64::MAX;
    let (found, left_out) = db
        .query_readable(100, &all, later, None, Aggregate::Last)
        .await
        .unwrap();
    assert_eq!((found.len(), left_out.is_empty()), (2, true));
}
