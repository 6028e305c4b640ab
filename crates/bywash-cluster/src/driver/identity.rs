//! The node's identity: a file in its data folder, so that it survives restarts and changes of address.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use bywash::staged_file::{StagedFile, open_folder};

use crate::names::NodeId;

/// Folder in the data folder.
const FOLDER: &str = "cluster";
const FILE: &str = "node-id";

/// Returns the identity of the node with this data folder, drawn and written durably at the first start. Blocks. The caller holds the
/// lock of the folder.
///
/// # Errors
/// Errors of the file system; `InvalidData` if the file holds none.
pub fn node_id(data: &Path) -> io::Result<NodeId> {
    let folder = data.join(FOLDER);
    let file = folder.join(FILE);
    match read(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)?;
    let id: u64 = rand::random();
    let staged = StagedFile::create(open_folder(&folder)?, &Permissions::from_mode(0o600))?;
    writeln!(staged.file(), "{id:016x}")?;
    match staged.place(OsStr::new(FILE), false) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&file),
        placed => placed.map(|()| NodeId(id)),
    }
}

fn read(file: &Path) -> io::Result<NodeId> {
    let text = fs::read_to_string(file)?;
    let digits = text.trim_end();
    let hex = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u64::from_str_radix(digits, 16).ok().filter(|_| hex);
    id.map(NodeId).ok_or_else(|| {
        let message = format!(
            "{} does not hold a node's identity, 16 hexadecimal digits; delete it, and the node gets a new one",
            file.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_stays_and_a_damaged_one_is_refused() {
        let data = tempfile::tempdir().unwrap();
        let first = node_id(data.path()).unwrap();
        assert_eq!(node_id(data.path()).unwrap(), first);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(node_id(other.path()).unwrap(), first);
        for damaged in ["", "12", "+123456789abcdef", "0123456789abcdefg"] {
            fs::write(data.path().join(FOLDER).join(FILE), damaged).unwrap();
            let refused = node_id(data.path()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{damaged}");
            assert!(refused.to_string().contains("delete it"), "{refused}");
        }
    }
}
