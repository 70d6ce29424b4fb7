//! Tests whether files can be linked or cloned from one directory into another.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use stepvault_core::Result;
use stepvault_core::disk_facts::{LinkAbility, LinkFacts};

use super::place::ProbePlace;
use crate::errors;
use crate::space;

/// Setting of the kernel that keeps users from linking files of others.
const PROTECTED: &str = "/proc/sys/fs/protected_hardlinks";

/// Tries to link and clone from `source` into `target`, or into the nearest existing directory above it. `example` is
/// one of the trainer's files, if there is one, because its owner matters as well.
///
/// # Errors
/// When nothing can be written in one of the directories.
pub fn links(source: &Path, target: &Path, example: Option<&Path>) -> Result<LinkFacts> {
    let from = ProbePlace::create(&space::nearest_existing(source))?;
    let into = ProbePlace::create(&space::nearest_existing(target))?;
    let (original, linked) = (from.path().join("original"), into.path().join("linked"));
    let create = |path: &Path| -> std::io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))?.into())
    };
    let write = || -> std::io::Result<File> {
        let mut file = create(&original)?;
        std::io::Write::write_all(&mut file, &[b'x'; 16 << 10])?;
        file.sync_all()?;
        Ok(file)
    };
    let file = write().map_err(|error| errors::io("cannot write", source, error))?;
    let hard_link = ability(rustix::fs::linkat(CWD, &original, CWD, &linked, AtFlags::empty()));
    let clone = create(&into.path().join("cloned"));
    let clone = clone.map_err(|error| errors::io("cannot write", target, error))?;
    let reflink = ability(rustix::fs::ioctl_ficlone(&clone, &file));
    drop((clone, file));
    into.remove()?;
    from.remove()?;
    Ok(LinkFacts { hard_link, reflink, foreign_owner: example.and_then(foreign_owner) })
}

fn ability(tried: rustix::io::Result<()>) -> LinkAbility {
    match tried {
        Ok(()) => LinkAbility::Works,
        Err(Errno::XDEV) => LinkAbility::Refused("different filesystems or mounts".to_owned()),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
            LinkAbility::Refused("the filesystem does not support it".to_owned())
        }
        Err(Errno::PERM | Errno::ACCESS) => LinkAbility::Refused("not permitted".to_owned()),
        Err(error) => LinkAbility::Refused(std::io::Error::from(error).to_string()),
    }
}

/// Returns the owner of a file that the kernel would not let this user link: the user must own the file, or be allowed
/// to read and write it.
fn foreign_owner(example: &Path) -> Option<u32> {
    let own = rustix::process::geteuid();
    let owner = example.symlink_metadata().ok()?.uid();
    let is_protected = std::fs::read_to_string(PROTECTED).is_ok_and(|text| text.trim() != "0");
    let may_use = || {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, example, flags, Mode::empty()).is_ok()
    };
    (is_protected && !own.is_root() && owner != own.as_raw() && !may_use()).then_some(owner)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_directory_links_and_nothing_stays() {
        let place = tempfile::tempdir().unwrap();
        let (source, target) = (place.path().join("source"), place.path().join("target"));
        std::fs::create_dir_all(&source).unwrap();
        std::fs::create_dir_all(&target).unwrap();
        let facts = links(&source, &target, None).unwrap();
        assert_eq!(facts.hard_link, LinkAbility::Works);
        for directory in [source, target] {
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
        }
        assert_eq!(
            ability(Err(Errno::XDEV)),
            LinkAbility::Refused("different filesystems or mounts".to_owned())
        );
    }
}
