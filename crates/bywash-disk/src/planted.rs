//! Planted faults: with the feature `planted-faults` one wrong step, which `BYWASH_PLANTED` names, is taken, so that
//! `cargo xtask trust --planted` shows which proof finds it. Without the feature, as in every build for use, each is the constant `false`.

/// Whether the fault of this name is planted.
#[cfg(not(feature = "planted-faults"))]
macro_rules! planted {
    ($name:literal) => {
        false
    };
}

/// Whether the fault of this name is planted.
#[cfg(feature = "planted-faults")]
macro_rules! planted {
    ($name:literal) => {
        crate::planted::is_planted($name)
    };
}

#[cfg(feature = "planted-faults")]
pub(crate) fn is_planted(name: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let planted = NAME.get_or_init(|| std::env::var("BYWASH_PLANTED").ok());
    planted.as_deref() == Some(name)
}
