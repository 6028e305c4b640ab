//! Processes that keep the processor busy next to tests: a test that needs two of its steps to fit into a time fails under them.

use std::process::{Child, Command, Stdio};

use crate::run::{Failure, doing};

/// Busy processes: twice the processors of the machines that the gate is made for.
const BUSY: usize = 4;

/// Busy processes until it is dropped.
#[derive(Debug)]
pub(crate) struct Load(Vec<Child>);

impl Load {
    /// Starts the processes.
    pub(crate) fn start() -> Result<Self, Failure> {
        // Dropped on failure: those that run are ended.
        let mut load = Self(Vec::with_capacity(BUSY));
        for _ in 0..BUSY {
            // Ends also if this program was killed: the loop looks for its parent.
            let busy =
                "while [ -d /proc/$0 ]; do i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; done";
            let child = Command::new("sh")
                .args(["-c", busy, &std::process::id().to_string()])
                .stdin(Stdio::null())
                .spawn();
            load.0.push(child.map_err(doing("start sh"))?);
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended needs no signal.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn busy_processes_run_until_the_load_is_dropped() {
        let load = Load::start().unwrap();
        let places = load.0.iter().map(|child| format!("/proc/{}", child.id()));
        let places: Vec<PathBuf> = places.map(PathBuf::from).collect();
        assert_eq!(places.len(), BUSY);
        assert!(places.iter().all(|place| place.exists()));
        drop(load);
        assert!(places.iter().all(|place| !place.exists()));
    }
}
