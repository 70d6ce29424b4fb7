//! Checks who may have written a file and who could replace it, by the rules that `ssh` applies to its own files.
//!
//! A vault decides which bytes a trainer loads, and a configuration decides where credentials are sent. Both are used
//! only when they belong to the effective user or to root, and when no other user can write to them or to a directory
//! above them. A sticky directory above is accepted: the kernel lets no user replace another user's files there.
//!
//! Every component of the path is examined from the root on, including symbolic links. A user excluded by these checks
//! cannot replace a component afterwards.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::durable::read_bounded;
use crate::errors::{self, IoAt as _};

const ROOT: u32 = 0;
/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;
/// The kernel's type number of a FUSE filesystem.
const FUSE: i128 = 0x6573_5546;
/// Maximum length of a list of users, groups or mounts that is read.
const MAX_ACCOUNTS_BYTES: u64 = 4 << 20;
const GROUP_OR_OTHERS: Mode = Mode::WGRP.union(Mode::WOTH);
const ANY_DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What is guarded, in the words of messages.
#[derive(Debug)]
struct Guarded {
    what: &'static str,
    /// What a user could do who can write to it or replace it.
    danger: &'static str,
    /// The hint other than changing owners and modes.
    way_out: &'static str,
    /// The additional hint where a directory above is open to others.
    shared_way_out: &'static str,
    /// Whether a directory above that is mounted read-only is trusted whatever its mode is.
    trusts_read_only_mounts: bool,
}

/// A vault's directory.
const VAULT: Guarded = Guarded {
    what: "cannot open the vault",
    danger: "who could plant a checkpoint for a restore",
    way_out: "choose a directory of your own with --local DIR or local.directory",
    shared_way_out: "; if every user with write access may replace your checkpoints, set \
                     local.allow-shared-parents = true",
    trusts_read_only_mounts: false,
};
/// A configuration file that was found by searching, not named by the user.
const CONFIGURATION: Guarded = Guarded {
    what: "cannot use the configuration file that was found",
    danger: "who could redirect checkpoints and credentials to their own store",
    way_out: "pass --config FILE if this file is intended",
    shared_way_out: "",
    trusts_read_only_mounts: true,
};

/// Whether the directories above a vault may be writable for other users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Parents {
    /// No other user may be able to replace the vault.
    #[default]
    Private,
    /// The configuration trusts all users who can write to a directory above the vault.
    Shared,
}

impl Parents {
    /// Converts the setting `local.allow-shared-parents`.
    pub fn allowed_if(are_shared: bool) -> Self {
        if are_shared { Self::Shared } else { Self::Private }
    }
}

/// Examines paths on behalf of a user.
#[derive(Debug, Clone)]
struct Examiner {
    user: u32,
    guarded: &'static Guarded,
    parents: Parents,
}

/// The end of a path.
struct Found {
    parent: OwnedFd,
    name: OsString,
}

/// Opens the vault at `path`, which must belong to this user or root and must not be replaceable by others. Returns
/// `None` when it does not exist.
///
/// # Errors
/// [`ErrorKind::Refused`] with the owner or mode that is wrong.
pub(crate) fn open_directory(path: &Path, parents: Parents) -> Result<Option<OwnedFd>> {
    let examiner = Examiner::new(&VAULT, parents);
    let found = examiner.accepted(path)?;
    found.map(|found| examiner.open_end(path, &found)).transpose()
}

/// Examines the path of a vault that is to be created: its ancestors, and the directory itself if it exists.
pub(crate) fn check_place(path: &Path, parents: Parents) -> Result<()> {
    let examiner = Examiner::new(&VAULT, parents);
    let (found, refusal) = examiner.walk(path)?;
    match (found, refusal) {
        (_, Some(refusal)) => Err(refusal),
        (Some(found), None) => examiner.open_end(path, &found).map(drop),
        (None, None) => Ok(()),
    }
}

/// Checks owner and mode of a directory inside an open vault. A missing one is accepted.
pub(crate) fn check_inside(vault: &OwnedFd, name: &OsStr, shown: &Path) -> Result<()> {
    match rustix::fs::statat(vault, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Examiner::new(&VAULT, Parents::Private).check_end(shown, &stat),
        // Something that is not a directory holds nothing.
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(error) => Err(errors::io(VAULT.what, shown, error)),
    }
}

/// Reads a configuration file that was found by searching, of at most `max_bytes`. Returns `None` when it does not
/// exist.
///
/// # Errors
/// [`ErrorKind::Refused`] when another user may have written it, or could replace it.
pub fn read_configuration(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>> {
    let examiner = Examiner::new(&CONFIGURATION, Parents::Private);
    let Some(found) = examiner.accepted(path)? else { return Ok(None) };
    let fault = |error: Errno| errors::io("cannot read", path, error);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&found.parent, &found.name, flags, Mode::empty()).map_err(fault)?;
    examiner.check_end(path, &rustix::fs::fstat(&file).map_err(fault)?)?;
    let mut bytes = Vec::new();
    File::from(file).take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).at("cannot read", path)?;
    if bytes.len() as u64 > max_bytes {
        return Err(Error::at(ErrorKind::Usage, "cannot read", path)
            .because(format!("it has more than {max_bytes} bytes")));
    }
    Ok(Some(bytes))
}

impl Examiner {
    fn new(guarded: &'static Guarded, parents: Parents) -> Self {
        Self { user: rustix::process::geteuid().as_raw(), guarded, parents }
    }

    /// Returns what is at the path, whose parents must all be acceptable; `None` for nothing.
    fn accepted(&self, path: &Path) -> Result<Option<Found>> {
        match self.walk(path)? {
            (Some(_), Some(refusal)) => Err(refusal),
            (found, _) => Ok(found),
        }
    }

    /// Walks from the root to the end of `path`, through links. Returns what is there, if anything, and the first
    /// reason not to trust a component on the way.
    fn walk(&self, path: &Path) -> Result<(Option<Found>, Option<Error>)> {
        let fault = |error: Errno| errors::io(self.guarded.what, path, error);
        let absolute = std::path::absolute(path).at(self.guarded.what, path)?;
        let mut ahead: VecDeque<OsString> = components(&absolute);
        let mut shown = PathBuf::from("/");
        let mut here = rustix::fs::openat(CWD, "/", ANY_DIRECTORY, Mode::empty()).map_err(fault)?;
        let mut refusal = None;
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if refusal.is_none() {
                refusal = self.refuse_parent(path, &shown, &here).map_err(fault)?;
            }
            let stat = match rustix::fs::statat(&here, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => return Ok((None, refusal)),
                Err(error) => return Err(fault(error)),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                links += 1;
                if links > MAX_LINKS {
                    return Err(fault(Errno::LOOP));
                }
                if refusal.is_none() && self.parents == Parents::Private && !self.trusts(stat.st_uid) {
                    let why = format!(
                        "{} is a symbolic link owned by user {}",
                        shown.join(&name).display(),
                        stat.st_uid
                    );
                    refusal = Some(self.refusal(path, &why, self.guarded.way_out.to_owned()));
                }
                let target = rustix::fs::readlinkat(&here, &name, Vec::new()).map_err(fault)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    here = rustix::fs::openat(CWD, "/", ANY_DIRECTORY, Mode::empty()).map_err(fault)?;
                    shown = PathBuf::from("/");
                }
                for component in components(&target).into_iter().rev() {
                    ahead.push_front(component);
                }
                continue;
            }
            if ahead.is_empty() {
                return Ok((Some(Found { parent: here, name }), refusal));
            }
            here = match open_in(here.as_fd(), &name) {
                Ok(next) => next,
                Err(Errno::NOENT) => return Ok((None, refusal)),
                Err(error) => return Err(fault(error)),
            };
            if name == ".." {
                shown.pop();
            } else {
                shown.push(&name);
            }
        }
        // The path is the root itself, which is never a vault.
        Err(fault(Errno::ISDIR))
    }

    /// Opens the directory at the end of the path if it belongs to this user or root.
    fn open_end(&self, path: &Path, found: &Found) -> Result<OwnedFd> {
        let fault = |error: Errno| errors::io(self.guarded.what, path, error);
        // The owner can be read even when the directory is closed to this user.
        let closed =
            rustix::fs::statat(&found.parent, &found.name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
        self.check_end(path, &closed)?;
        let directory = open_in(found.parent.as_fd(), &found.name).map_err(fault)?;
        let stat = rustix::fs::fstat(&directory).map_err(fault)?;
        self.check_end(path, &stat)?;
        let foreign = self.foreign_mounter(&directory, &stat);
        match foreign.filter(|_| self.parents == Parents::Private) {
            None => Ok(directory),
            Some(user) => {
                let why = format!("user {user} has mounted its filesystem");
                let hint = format!("{}{}", self.guarded.way_out, self.guarded.shared_way_out);
                Err(self.refusal(path, &why, hint))
            }
        }
    }

    /// Returns another user who serves the directory's filesystem and therefore controls the reported owners.
    fn foreign_mounter(&self, directory: &OwnedFd, stat: &Stat) -> Option<u32> {
        let is_fuse = rustix::fs::fstatfs(directory).is_ok_and(|facts| i128::from(facts.f_type) == FUSE);
        if !is_fuse {
            return None;
        }
        let mounts = read_bounded(Path::new("/proc/self/mountinfo"), MAX_ACCOUNTS_BYTES).ok().flatten()?;
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        fuse_user(&mounts, device).filter(|user| !self.trusts(*user))
    }

    /// Returns why a directory on the way to `path` is not trusted.
    fn refuse_parent(
        &self,
        path: &Path,
        shown: &Path,
        directory: &OwnedFd,
    ) -> rustix::io::Result<Option<Error>> {
        if self.parents == Parents::Shared {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(directory)?;
        let directory_shown = shown.display();
        let way_out = self.guarded.way_out;
        let or_share = self.guarded.shared_way_out;
        if !self.trusts(stat.st_uid) {
            let why = format!("{directory_shown} belongs to user {}", stat.st_uid);
            return Ok(Some(self.refusal(path, &why, format!("{way_out}{or_share}"))));
        }
        if let Some(user) = self.foreign_mounter(directory, &stat) {
            let why = format!("user {user} has mounted the filesystem of {directory_shown}");
            return Ok(Some(self.refusal(path, &why, format!("{way_out}{or_share}"))));
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.contains(Mode::SVTX) {
            return Ok(None);
        }
        let Some(who) = self.other_writers(&stat) else {
            return Ok(None);
        };
        // A configuration mounted read-only, as Kubernetes does, cannot be written to by anybody here.
        if self.guarded.trusts_read_only_mounts && is_mounted_read_only(directory) {
            return Ok(None);
        }
        let why = format!("{directory_shown} can be written to by {}", who.name);
        let hint = format!("run chmod {} {directory_shown}, or {way_out}{or_share}", who.mode);
        Ok(Some(self.refusal(path, &why, hint)))
    }

    /// Refuses the end of the path for its own owner or mode.
    fn check_end(&self, path: &Path, stat: &Stat) -> Result<()> {
        let shown = path.display();
        let way_out = self.guarded.way_out;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(self.refusal(path, "it is a link", way_out.to_owned()));
        }
        if !self.trusts(stat.st_uid) {
            let owner = stat.st_uid;
            let hint = if self.user == ROOT {
                format!("run stepvault as that user (setpriv --reuid={owner} …), or {way_out}")
            } else {
                way_out.to_owned()
            };
            return Err(self.refusal(path, &format!("it belongs to user {owner}"), hint));
        }
        match self.other_writers(stat) {
            None => Ok(()),
            Some(who) => {
                let why = format!("it can be written to by {}", who.name);
                Err(self.refusal(path, &why, format!("run chmod {} {shown}, or {way_out}", who.mode)))
            }
        }
    }

    fn refusal(&self, path: &Path, why: &str, hint: String) -> Error {
        Error::at(ErrorKind::Refused, self.guarded.what, path)
            .because(format!("{why}, {}", self.guarded.danger))
            .hint(hint)
    }

    fn trusts(&self, owner: u32) -> bool {
        owner == self.user || owner == ROOT
    }

    /// Returns the other users who may write to a file with these facts.
    fn other_writers(&self, stat: &Stat) -> Option<Writers> {
        let open = Mode::from_raw_mode(stat.st_mode).intersection(GROUP_OR_OTHERS);
        if open.contains(Mode::WOTH) {
            return Some(Writers { name: "every user".to_owned(), mode: "go-w" });
        }
        let is_open = open.contains(Mode::WGRP) && !is_private_group(stat.st_gid, self.user);
        is_open.then(|| Writers { name: format!("group {}", stat.st_gid), mode: "g-w" })
    }
}

/// The users other than the owner who may write.
struct Writers {
    name: String,
    /// The argument of `chmod` that excludes them.
    mode: &'static str,
}

/// Opens a directory by its name in another one, which triggers an automounter. The name was not a link.
fn open_in(directory: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(directory, Path::new(name).join("."), ANY_DIRECTORY, Mode::empty())
}

/// Returns the components of a path, including `..`.
fn components(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// Returns the user who mounted the FUSE filesystem of this device, from the kernel's list of mounts; `None` where the
/// list names no user, as for mounts that only root can make.
fn fuse_user(mounts: &[u8], (major, minor): (u32, u32)) -> Option<u32> {
    let device = format!("{major}:{minor}");
    let mounts = String::from_utf8_lossy(mounts);
    let of_device = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device.as_str()))?;
    let (_, filesystem) = of_device.split_once(" - ")?;
    let options = filesystem.split(' ').nth(2)?;
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id="))?;
    user.parse().ok()
}

fn is_mounted_read_only(directory: &OwnedFd) -> bool {
    rustix::fs::fstatvfs(directory).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Returns whether a group belongs to the user alone: with a umask of 002 and a group of the same number per user, the
/// group can write to everything in a home. Root's own group counts as private for everybody, as root is trusted.
fn is_private_group(group: u32, user: u32) -> bool {
    if group == ROOT {
        return true;
    }
    let is_member = rustix::process::getegid().as_raw() == group
        || rustix::process::getgroups()
            .is_ok_and(|groups| groups.iter().any(|other| other.as_raw() == group));
    let accounts = |path: &str| {
        let bytes = read_bounded(Path::new(path), MAX_ACCOUNTS_BYTES).ok().flatten();
        bytes.unwrap_or_default()
    };
    group == user
        && is_member
        && has_no_other_member(group, user, &accounts("/etc/passwd"), &accounts("/etc/group"))
}

/// Checks the lists of users and groups of this machine. Members defined by a directory service are not seen.
fn has_no_other_member(group: u32, user: u32, users: &[u8], groups: &[u8]) -> bool {
    let (users, groups) = (String::from_utf8_lossy(users), String::from_utf8_lossy(groups));
    let mut own_names = Vec::new();
    for fields in users.lines().map(|line| line.split(':').collect::<Vec<_>>()) {
        let [name, _, user_id, group_id, ..] = fields.as_slice() else {
            continue;
        };
        if user_id.parse() == Ok(user) {
            own_names.push((*name).to_owned());
        } else if group_id.parse() == Ok(group) {
            return false;
        }
    }
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let mut of_group = groups.lines().map(fields).filter_map(|fields| match fields.as_slice() {
        [_, _, group_id, members, ..] if group_id.parse() == Ok(group) => Some(members.clone()),
        _ => None,
    });
    of_group.all(|members| {
        let mut names = members.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.all(|name| own_names.iter().any(|own| own == name))
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const SOMEBODY: u32 = 4711;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn vault(path: &Path) -> Result<Option<OwnedFd>> {
        open_directory(path, Parents::Private)
    }

    fn refused(path: &Path) -> String {
        let error = vault(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        format!("{error} [{}]", error.hint_text().unwrap_or_default())
    }

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("not run: only the superuser can give files to another user");
        }
        is_root
    }

    #[test]
    fn modes_that_let_others_in_are_refused_with_the_command_that_mends_them() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/vault");
        fs::create_dir_all(&directory).unwrap();
        chown(&directory, None, Some(rustix::process::getgid().as_raw())).unwrap();
        for mode in [0o700, 0o755, 0o1755] {
            set_mode(&directory, mode);
            vault(&directory).unwrap().unwrap();
        }
        for mode in [0o777, 0o1777, 0o702] {
            set_mode(&directory, mode);
            let told = refused(&directory);
            assert!(told.contains("it can be written to by every user"), "{told}");
            assert!(told.contains(&format!("run chmod go-w {}", directory.display())), "{told}");
        }
        set_mode(&directory, 0o700);
        let above = place.path().join("a");
        set_mode(&above, 0o777);
        let told = refused(&directory);
        assert!(told.contains("/a can be written to by every user"), "{told}");
        assert!(told.contains("local.allow-shared-parents = true"), "{told}");
        open_directory(&directory, Parents::Shared).unwrap().unwrap();
        // In a sticky directory no user can replace another user's files.
        set_mode(&above, 0o1777);
        vault(&directory).unwrap().unwrap();
        check_place(&above.join("new"), Parents::Private).unwrap();
        set_mode(&above, 0o777);
        check_place(&above.join("new"), Parents::Private).unwrap_err();
        assert!(vault(&above.join("new")).unwrap().is_none());
    }

    #[test]
    fn another_owner_is_refused_at_every_place_of_the_path() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/vault");
        fs::create_dir_all(&directory).unwrap();
        chown(&directory, Some(SOMEBODY), None).unwrap();
        let told = refused(&directory);
        assert!(told.contains("it belongs to user 4711, who could plant a checkpoint"), "{told}");
        assert!(told.contains("setpriv --reuid=4711"), "{told}");
        // Not even where the users who can write above are trusted.
        open_directory(&directory, Parents::Shared).unwrap_err();
        chown(&directory, Some(0), None).unwrap();
        chown(place.path().join("a"), Some(SOMEBODY), None).unwrap();
        assert!(refused(&directory).contains("/a belongs to user 4711"));
        open_directory(&directory, Parents::Shared).unwrap().unwrap();
    }

    #[test]
    fn a_link_counts_by_its_owner_and_by_what_is_above_it_and_its_target() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir_all(at("real/vault")).unwrap();
        symlink("real/../real/vault", at("link")).unwrap();
        symlink(at("real"), at("absolute")).unwrap();
        vault(&at("link")).unwrap().unwrap();
        vault(&at("absolute/vault")).unwrap().unwrap();
        symlink("loop", at("loop")).unwrap();
        assert_eq!(vault(&at("loop")).unwrap_err().kind(), ErrorKind::Refused);
        set_mode(&at("real"), 0o777);
        assert!(refused(&at("link")).contains("/real can be written to"));
        set_mode(&at("real"), 0o755);
        if is_root() {
            lchown(at("link"), Some(SOMEBODY), None).unwrap();
            assert!(refused(&at("link")).contains("/link is a symbolic link owned by user 4711"));
        }
    }

    #[test]
    fn a_found_configuration_is_read_only_when_nobody_else_can_write_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("stepvault.toml");
        assert_eq!(read_configuration(&file, 10).unwrap(), None);
        fs::write(&file, "format = 1").unwrap();
        set_mode(&file, 0o644);
        assert_eq!(read_configuration(&file, 10).unwrap().unwrap(), b"format = 1");
        assert_eq!(read_configuration(&file, 9).unwrap_err().kind(), ErrorKind::Usage);
        set_mode(&file, 0o666);
        let error = read_configuration(&file, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert!(error.hint_text().unwrap().contains("pass --config FILE"));
    }

    #[test]
    fn the_user_who_runs_a_filesystem_is_told_from_who_owns_its_files() {
        let mounts = b"23 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            99 23 0:77 / /scratch/.stepvault rw,nosuid shared:5 - fuse.planted planted rw,user_id=4711,group_id=4711\n\
            98 23 0:78 / /mnt rw - virtiofs share rw\n";
        assert_eq!(fuse_user(mounts, (0, 77)), Some(4711));
        assert_eq!(fuse_user(mounts, (0, 78)), None);
        assert_eq!(fuse_user(mounts, (8, 1)), None);
        assert_eq!(fuse_user(mounts, (0, 7)), None);
        assert_eq!(fuse_user(b"", (0, 77)), None);
    }

    #[test]
    fn a_group_is_private_when_nobody_else_is_in_it() {
        let users =
            b"root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\nyou:x:1001:1001::/:/bin/sh\n";
        let is_private = |users: &[u8], groups: &[u8]| has_no_other_member(1000, 1000, users, groups);
        assert!(is_private(users, b"me:x:1000:\nteam:x:2000:me,you\n"));
        assert!(is_private(users, b"me:x:1000:me\n"));
        assert!(!is_private(users, b"me:x:1000:me,you\n"));
        assert!(!is_private(users, b"me:x:1000:\nalias:x:1000:you\n"));
        assert!(!is_private(b"me:x:1000:1000\nyou:x:1001:1000:\n", b"me:x:1000:\n"));
        // Defined by a directory service, or in a container without lists.
        assert!(is_private(b"", b""));
        assert!(is_private_group(ROOT, 1000));
        assert!(!is_private_group(2000, 1000));
    }
}
