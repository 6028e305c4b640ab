//! Deletion of one object. Blocks on files.

use object_store::Result;
use object_store::path::Path;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::error::io_error;
use super::names;
use super::root::Root;
use crate::interface::DeleteCondition;
use crate::staged_file::sync_folder;

impl Root {
    /// Removes the object if there is one and it meets `condition`.
    pub(super) fn delete(&self, key: &Path, condition: &DeleteCondition) -> Result<()> {
        let failed = |errno: Errno| io_error("delete", key.as_ref(), errno);
        let _guard = self.lock(key.as_ref());
        if !condition.is_empty() {
            let current = self.locate(key)?;
            self.check_delete(key, current.as_ref(), condition)?;
        }
        // The place looked up last is removed first: otherwise deleting a file that another program put over an
        // object of the overflow area would uncover that object.
        for (area, path) in names::places(key)?.into_iter().rev() {
            let Some((_, identity)) = self.open_file(&path).map_err(failed)? else {
                continue;
            };
            let (folder, name) = self.parent(&path).map_err(failed)?;
            match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
            sync_folder(&folder).map_err(failed)?;
            self.remove_attributes(key, &identity);
            self.prune(&path, area.base());
        }
        Ok(())
    }
}
