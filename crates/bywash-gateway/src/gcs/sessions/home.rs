//! The node that has a session. Its bytes that the origin does not hold yet are in that node's data folder, so in a cluster the name of a
//! session ends with the node, and other nodes refuse its requests so that clients repeat them.
//!
//! A name is 64 digits, which name the session at its node; in a cluster `.`, the start in seconds since 1970, `.`, and the node.

use bywash::Engine;
use chrono::Utc;

use super::super::error::GcsError;
use crate::limits::{ELSEWHERE_RETRY_S, MAX_SESSION_AGE};

/// The name of a session, as its client has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionName<'a> {
    /// Its id at its node.
    pub(super) id: &'a str,
    home: Option<Home<'a>>,
}

/// Where and when a session of a cluster began.
#[derive(Debug, PartialEq, Eq)]
struct Home<'a> {
    /// In seconds since 1970.
    begun: i64,
    node: &'a str,
}

/// The name of a new session for its client. `node`: in a cluster.
pub(super) fn name_of(id: &str, node: Option<&str>) -> String {
    match node {
        None => id.to_owned(),
        Some(node) => format!("{id}.{}.{node}", Utc::now().timestamp()),
    }
}

impl<'a> SessionName<'a> {
    /// Parses a name. A name of another form is taken for an id, which no session has.
    pub(super) fn parse(name: &'a str) -> Self {
        let home = || {
            let (id, rest) = name.split_once('.')?;
            let (begun, node) = rest.split_once('.')?;
            let begun = begun.parse().ok()?;
            Some((id, Home { begun, node }))
        };
        match home() {
            Some((id, home)) => Self {
                id,
                home: Some(home),
            },
            None => Self {
                id: name,
                home: None,
            },
        }
    }

    /// Checks that the session is at this node. A server outside a cluster has all sessions of its
    /// data folder, also sessions that began in a cluster.
    ///
    /// # Errors
    /// If it is at another node: for as long as that node may return, an error after which clients
    /// repeat the request, as they would begin a new upload if the session did not exist.
    pub(super) fn check_home(&self, node: Option<&str>, engine: &Engine) -> Result<(), GcsError> {
        let (Some(home), Some(own)) = (&self.home, node) else {
            return Ok(());
        };
        if home.node == own {
            return Ok(());
        }
        // Sessions need no other credential than their name: the response has nothing of the cluster that is not in it.
        let status = engine.cluster_status();
        let members = status.as_ref().map_or(&[][..], |status| &status.members);
        let node = home.node;
        let text = match members.iter().any(|member| member.node == node) {
            true => format!(
                "The resumable session is at the node {node} of the cluster, and this is another. Repeat the request, and have the load \
                 balancer send it there: upload_id ends with the node."
            ),
            false if home.is_over() && !members.is_empty() => {
                return Err(GcsError::gone(format!(
                    "The resumable session was at the node {node}, which is no member of the cluster, and is over: begin the upload again."
                )));
            }
            false => format!(
                "The resumable session is at the node {node}, which is no member of the cluster now. Repeat the request when it is \
                 back; if it never will be, begin the upload again."
            ),
        };
        Err(GcsError::unavailable(text).with_retry_after(ELSEWHERE_RETRY_S))
    }
}

impl Home<'_> {
    /// Whether a session of that age is over at its node, unless its bytes took more than the week
    /// that it has after each addition.
    fn is_over(&self) -> bool {
        let age = Utc::now().timestamp().saturating_sub(self.begun);
        u64::try_from(age).is_ok_and(|age| age > 2 * MAX_SESSION_AGE.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_in_a_cluster_ends_with_its_node() {
        let id = "0".repeat(64);
        assert_eq!(name_of(&id, None), id);
        let alone = SessionName::parse(&id);
        assert_eq!((alone.id, &alone.home), (&*id, &None));
        let name = name_of(&id, Some("00ff"));
        assert!(name.ends_with(".00ff"), "{name}");
        let parsed = SessionName::parse(&name);
        assert_eq!(parsed.id, id);
        let home = parsed.home.unwrap();
        assert_eq!(home.node, "00ff");
        assert!(!home.is_over());
    }

    #[test]
    fn other_texts_are_names_without_a_node() {
        for text in ["", ".", "a.b", "a.b.c", "a.99999999999999999999.c", "/../x"] {
            let parsed = SessionName::parse(text);
            assert_eq!((parsed.id, parsed.home), (text, None));
        }
    }

    #[test]
    fn session_is_over_a_week_after_its_week() {
        let age = 2 * MAX_SESSION_AGE.as_secs() as i64;
        for (age, over) in [
            (age - 60, false),
            (age + 60, true),
            (i64::MAX, true),
            (-60, false),
        ] {
            let begun = Utc::now().timestamp().saturating_sub(age);
            let home = Home { begun, node: "n" };
            assert_eq!(home.is_over(), over, "{age}");
        }
    }
}
