//! A Unix socket that no other user can open, not even during its creation.

use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use stepvault_core::{Error, ErrorKind, Result};

use crate::errors::{self, IoAt as _};

const WHAT: &str = "cannot create the socket";
/// The longest socket path that the kernel accepts.
const LONGEST_PATH_BYTES: usize = 107;
/// The socket's temporary name.
const UNFINISHED: &str = "s";

/// The name of a socket; removed when dropped, unless another socket has replaced it.
#[derive(Debug)]
pub struct PrivateSocket {
    path: PathBuf,
    identity: (u64, u64),
}

impl PrivateSocket {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        let there = rustix::fs::statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| identity(&there) == self.identity) {
            let _ = rustix::fs::unlinkat(CWD, &self.path, AtFlags::empty());
        }
    }
}

/// Listens on a new socket at `path` with mode 0600 and replaces an existing one: the caller must know that nothing
/// listens on that one. The socket is created in a private directory, so that other users can never open it. Blocks.
///
/// # Errors
/// [`ErrorKind::Usage`] for a path that is too long; [`ErrorKind::Refused`] when something that is not a socket is
/// there.
pub fn listen_privately(path: &Path) -> Result<(UnixListener, PrivateSocket)> {
    let fault = |error: Errno| errors::io(WHAT, path, error);
    let length = path.as_os_str().as_bytes().len();
    if length > LONGEST_PATH_BYTES {
        return Err(Error::at(ErrorKind::Usage, WHAT, path).because(format!(
            "its path has {length} bytes, and the system takes at most {LONGEST_PATH_BYTES}"
        )));
    }
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {}
        Err(error) => return Err(fault(error)),
        Ok(there) if FileType::from_raw_mode(there.st_mode) == FileType::Socket => {}
        Ok(_) => {
            return Err(Error::at(ErrorKind::Refused, WHAT, path)
                .because("something that is not a socket is at this path")
                .hint("move it, or choose another path"));
        }
    }
    let place = unfinished_place(path)?;
    let made = make_in(&place, path);
    // Fails if something is left in it; then the next start reuses it.
    let _ = rustix::fs::unlinkat(CWD, &place, AtFlags::REMOVEDIR);
    made
}

fn make_in(place: &Path, path: &Path) -> Result<(UnixListener, PrivateSocket)> {
    let fault = |error: Errno| errors::io(WHAT, path, error);
    match rustix::fs::mkdirat(CWD, place, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(fault(error)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, place, flags, Mode::empty()).map_err(fault)?;
    let facts = rustix::fs::fstat(&directory).map_err(fault)?;
    let is_ours = facts.st_uid == rustix::process::geteuid().as_raw();
    if !is_ours || Mode::from_raw_mode(facts.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
        return Err(Error::at(ErrorKind::Refused, WHAT, place)
            .because("this directory exists and other users have access to it")
            .hint("remove it"));
    }
    match rustix::fs::unlinkat(&directory, UNFINISHED, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(fault(error)),
    }
    // Through the descriptor, because the directory's own path may be longer than the kernel accepts.
    let through = format!("/proc/self/fd/{}/{UNFINISHED}", directory.as_raw_fd());
    let listener = UnixListener::bind(through).at(WHAT, path)?;
    rustix::fs::chmodat(&directory, UNFINISHED, Mode::RUSR | Mode::WUSR, AtFlags::empty()).map_err(fault)?;
    let made = rustix::fs::statat(&directory, UNFINISHED, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
    rustix::fs::renameat(&directory, UNFINISHED, CWD, path).map_err(fault)?;
    let socket = PrivateSocket { path: path.to_owned(), identity: identity(&made) };
    Ok((listener, socket))
}

/// Returns a name beside the socket, from which it is renamed into place.
fn unfinished_place(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Error::at(ErrorKind::Usage, WHAT, path).because("its name is not UTF-8"))?;
    Ok(path.with_file_name(format!(".{name}.new")))
}

fn identity(facts: &Stat) -> (u64, u64) {
    (facts.st_dev, facts.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn names(place: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(place).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn it_is_closed_to_others_and_goes_with_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("agent.sock");
        let (listener, socket) = listen_privately(&path).unwrap();
        let mode = path.symlink_metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(names(place.path()), ["agent.sock"]);
        UnixStream::connect(&path).unwrap();
        drop((listener, socket));
        assert_eq!(names(place.path()), Vec::<String>::new());
    }

    #[test]
    fn a_dead_one_is_replaced_and_another_one_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("agent.sock");
        // Closed without being removed, as after a kill.
        drop(UnixListener::bind(&path).unwrap());
        assert!(UnixStream::connect(&path).is_err());
        let (_first, old) = listen_privately(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        let (_second, _new) = listen_privately(&path).unwrap();
        drop(old);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notes");
        crate::durable::create_new(&path, b"mine").unwrap();
        let error = listen_privately(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn the_longest_path_is_taken_and_a_longer_one_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let room = LONGEST_PATH_BYTES - place.path().as_os_str().len() - 1;
        let path = place.path().join("x".repeat(room));
        let (_listener, socket) = listen_privately(&path).unwrap();
        UnixStream::connect(socket.path()).unwrap();
        let error = listen_privately(&place.path().join("x".repeat(room + 1))).unwrap_err();
        assert!(
            error.to_string().contains("its path has 108 bytes, and the system takes at most 107"),
            "{error}"
        );
        assert_eq!(names(place.path()).len(), 1);
    }

    #[test]
    fn a_directory_that_others_could_open_is_not_trusted() {
        let place = tempfile::tempdir().unwrap();
        let unfinished = place.path().join(".agent.sock.new");
        std::fs::create_dir(&unfinished).unwrap();
        std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = listen_privately(&place.path().join("agent.sock")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
    }
}
