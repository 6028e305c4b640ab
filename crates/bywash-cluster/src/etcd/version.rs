//! Which versions of etcd are refused, and why.

/// The version of etcd has a defect on which the protocol depends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedVersion {
    /// Older than 3.5.28, or 3.6 before 3.6.9.
    #[error(
        "etcd {0} may return stale reads after a pause of its process; use 3.5.28 or later, or 3.6.9 or later"
    )]
    Defective(String),
    /// Not a version.
    #[error(
        "etcd states {0:?} as its version, which is not a version; does another server listen at this address?"
    )]
    Unreadable(String),
}

/// Checks the version that a member of etcd states.
///
/// # Errors
/// If it is refused.
pub fn check_version(stated: &str) -> Result<(), RefusedVersion> {
    let unreadable = || RefusedVersion::Unreadable(stated.chars().take(40).collect());
    let numbers = stated.split(['-', '+']).next().unwrap_or_default();
    let numbers: Option<Vec<u32>> = numbers.split('.').map(|part| part.parse().ok()).collect();
    let Some([major, minor, patch]) = numbers.as_deref() else {
        return Err(unreadable());
    };
    let fixed = match (major, minor) {
        (3, 5) => *patch >= 28,
        (3, 6) => *patch >= 9,
        (3, minor) => *minor > 6,
        (major, _) => *major > 3,
    };
    if fixed {
        Ok(())
    } else {
        Err(RefusedVersion::Defective(stated.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_defects_are_refused() {
        for good in [
            "3.5.28",
            "3.5.40",
            "3.6.9",
            "3.6.16",
            "3.7.0",
            "4.0.1",
            "3.6.9+git",
        ] {
            assert_eq!(check_version(good), Ok(()), "{good}");
        }
        for bad in ["3.4.42", "3.5.27", "3.6.0", "3.6.8", "2.3.8", "3.6.8-rc.1"] {
            let refused = check_version(bad).unwrap_err();
            assert!(matches!(refused, RefusedVersion::Defective(_)), "{bad}");
        }
        for none in ["", "3.6", "nginx", "3.6.x", "3.6.9.1"] {
            let refused = check_version(none).unwrap_err();
            assert!(matches!(refused, RefusedVersion::Unreadable(_)), "{none}");
        }
    }
}
