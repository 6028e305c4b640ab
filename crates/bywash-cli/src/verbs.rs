//! The verbs, one a file.

pub(crate) mod buckets;
pub(crate) mod cache;
pub(crate) mod cat;
pub(crate) mod cluster;
pub(crate) mod cp;
pub(crate) mod du;
pub(crate) mod env;
pub(crate) mod keys;
pub(crate) mod local;
pub(crate) mod ls;
pub(crate) mod presign;
pub(crate) mod rm;
pub(crate) mod series;
pub(crate) mod shell;
pub(crate) mod stat;
pub(crate) mod sync;
pub(crate) mod uploads;
