//! Damaged data: set aside, so that the node starts without any, joins its cluster again under a new identity, and is given everything by the others.
//!
//! Nothing is deleted: what was there lies in [`FOLDER`] until somebody has looked at it. While it does, damage that is found again is not healed by itself, since a disk that
//! rots twice should be looked at, and the node founds no cluster, since it has belonged to one.

use anyhow::Context;
use std::fs;
use std::path::Path;
use warren_storage::StorageError;

/// Where damaged data goes, within the data folder.
const FOLDER: &str = "damaged";
/// What that is called until all of it is there.
const PART: &str = "damaged.part";

/// Whether damaged data was set aside in this data folder, and is still there.
pub(crate) fn was_set_aside(data: &Path) -> bool {
    data.join(FOLDER).exists()
}

/// Goes on with what an earlier process had begun and not brought to its end. Half of a data folder must not be used.
pub(crate) fn finish(data: &Path) -> anyhow::Result<()> {
    if data.join(PART).exists() {
        move_all(data).with_context(|| doing(data))?;
    }
    Ok(())
}

/// Moves all that is in the data folder into a folder of its own.
pub(crate) fn set_aside(data: &Path, damage: &StorageError) -> anyhow::Result<()> {
    let aside = data.join(FOLDER);
    if aside.exists() {
        anyhow::bail!(
            "{damage}. Damaged data was set aside before, in {}: look at the disk, then remove that folder, and this node restores itself from the others",
            aside.display()
        );
    }
    tracing::error!(%damage, aside = %aside.display(), "stored data is damaged: it is set aside, and this node is restored from the others; remove the folder when you have looked at the disk");
    fs::create_dir(data.join(PART))
        .and_then(|()| move_all(data))
        .with_context(|| doing(data))
}

fn doing(data: &Path) -> String {
    format!(
        "cannot set damaged data aside in {}",
        data.join(FOLDER).display()
    )
}

fn move_all(data: &Path) -> std::io::Result<()> {
    let part = data.join(PART);
    sync(data)?;
    for entry in fs::read_dir(data)? {
        let entry = entry?;
        if entry.path() != part {
            fs::rename(entry.path(), part.join(entry.file_name()))?;
        }
    }
    sync(&part)?;
    fs::rename(&part, data.join(FOLDER))?;
    sync(data)
}

fn sync(folder: &Path) -> std::io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_storage::Place;

    #[test]
    fn all_is_moved_once_and_nothing_is_deleted() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().to_owned();
        let damage = StorageError::Corrupt {
            what: "rot".into(),
            place: Place::Files { path: path.clone() },
        };
        fs::create_dir(path.join("raft-log")).unwrap();
        fs::write(path.join("raft-log/1"), b"one").unwrap();
        fs::write(path.join("CURRENT"), b"two").unwrap();
        assert!(!was_set_aside(&path));
        set_aside(&path, &damage).unwrap();
        assert!(was_set_aside(&path));
        assert_eq!(fs::read(path.join("damaged/raft-log/1")).unwrap(), b"one");
        assert_eq!(fs::read(path.join("damaged/CURRENT")).unwrap(), b"two");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::write(path.join("CURRENT"), b"three").unwrap();
        let refused = set_aside(&path, &damage).unwrap_err().to_string();
        assert!(
            refused.contains("rot") && refused.contains("set aside before"),
            "{refused}"
        );
        assert_eq!(fs::read(path.join("CURRENT")).unwrap(), b"three");
    }

    #[test]
    fn what_was_begun_is_brought_to_its_end() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path();
        finish(path).unwrap();
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        fs::create_dir(path.join(PART)).unwrap();
        fs::write(path.join(PART).join("CURRENT"), b"two").unwrap();
        fs::write(path.join("MANIFEST"), b"one").unwrap();
        finish(path).unwrap();
        assert_eq!(fs::read(path.join("damaged/MANIFEST")).unwrap(), b"one");
        assert_eq!(fs::read(path.join("damaged/CURRENT")).unwrap(), b"two");
        assert_eq!(fs::read_dir(path).unwrap().count(), 1);
    }
}
