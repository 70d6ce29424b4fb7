//! The system calls by which a process changes something outside of itself: on disk, or at the other end of a
//! connection.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// One such call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: i64,
    /// The condition under which it changes something.
    when: When,
    /// Whether its first argument is the descriptor of its file.
    by_descriptor: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// The descriptor is a file or a connection, not a pipe or event.
    OnFileOrSocket,
    /// The flags in this argument contain `O_CREAT` or `O_TRUNC`.
    CreatesByArgument,
    /// As `CreatesByArgument`, but the flags are at the start of the structure that the third argument points to.
    CreatesByStructure,
    /// It is a request to share another file's blocks.
    Clones,
}

/// `FICLONE`, on every architecture that numbers requests as x86 does.
const FICLONE: u64 = 0x4004_9409;

const fn call(name: &'static str, number: i64, when: When, by_descriptor: bool) -> Call {
    Call { name, number, when, by_descriptor }
}

/// All changing calls. Watching the binary shows which of them it makes.
pub(crate) const CALLS: [Call; 33] = [
    call("write", libc::SYS_write, When::OnFileOrSocket, true),
    call("pwrite64", libc::SYS_pwrite64, When::OnFileOrSocket, true),
    call("writev", libc::SYS_writev, When::OnFileOrSocket, true),
    call("pwritev2", libc::SYS_pwritev2, When::OnFileOrSocket, true),
    call("sendto", libc::SYS_sendto, When::OnFileOrSocket, true),
    call("sendmsg", libc::SYS_sendmsg, When::OnFileOrSocket, true),
    call("sendfile", libc::SYS_sendfile, When::OnFileOrSocket, true),
    call("copy_file_range", libc::SYS_copy_file_range, When::Always, false),
    call("ioctl FICLONE", libc::SYS_ioctl, When::Clones, true),
    call("open", libc::SYS_open, When::CreatesByArgument, false),
    call("openat", libc::SYS_openat, When::CreatesByArgument, false),
    call("openat2", libc::SYS_openat2, When::CreatesByStructure, false),
    call("rename", libc::SYS_rename, When::Always, false),
    call("renameat", libc::SYS_renameat, When::Always, false),
    call("renameat2", libc::SYS_renameat2, When::Always, false),
    call("link", libc::SYS_link, When::Always, false),
    call("linkat", libc::SYS_linkat, When::Always, false),
    call("symlink", libc::SYS_symlink, When::Always, false),
    call("symlinkat", libc::SYS_symlinkat, When::Always, false),
    call("unlink", libc::SYS_unlink, When::Always, false),
    call("unlinkat", libc::SYS_unlinkat, When::Always, false),
    call("rmdir", libc::SYS_rmdir, When::Always, false),
    call("mkdir", libc::SYS_mkdir, When::Always, false),
    call("mkdirat", libc::SYS_mkdirat, When::Always, false),
    call("fsync", libc::SYS_fsync, When::Always, true),
    call("fdatasync", libc::SYS_fdatasync, When::Always, true),
    call("syncfs", libc::SYS_syncfs, When::Always, true),
    call("sync_file_range", libc::SYS_sync_file_range, When::Always, true),
    call("ftruncate", libc::SYS_ftruncate, When::Always, true),
    call("fallocate", libc::SYS_fallocate, When::Always, true),
    call("chmod", libc::SYS_chmod, When::Always, false),
    call("fchmod", libc::SYS_fchmod, When::Always, true),
    call("utimensat", libc::SYS_utimensat, When::Always, true),
];

/// The calls on files by path, with the argument that names the path, and whether the previous argument names the
/// directory.
const BY_PATH: [(&str, i64, usize, bool); 18] = [
    ("open", libc::SYS_open, 0, false),
    ("openat", libc::SYS_openat, 1, true),
    ("openat2", libc::SYS_openat2, 1, true),
    ("stat", libc::SYS_stat, 0, false),
    ("lstat", libc::SYS_lstat, 0, false),
    ("newfstatat", libc::SYS_newfstatat, 1, true),
    ("statx", libc::SYS_statx, 1, true),
    ("statfs", libc::SYS_statfs, 0, false),
    ("readlinkat", libc::SYS_readlinkat, 1, true),
    ("unlink", libc::SYS_unlink, 0, false),
    ("unlinkat", libc::SYS_unlinkat, 1, true),
    ("rmdir", libc::SYS_rmdir, 0, false),
    ("mkdir", libc::SYS_mkdir, 0, false),
    ("mkdirat", libc::SYS_mkdirat, 1, true),
    ("rename", libc::SYS_rename, 0, false),
    ("renameat2", libc::SYS_renameat2, 1, true),
    ("linkat", libc::SYS_linkat, 1, true),
    ("utimensat", libc::SYS_utimensat, 1, true),
];

/// The calls on open files.
const BY_DESCRIPTOR: [(&str, i64); 14] = [
    ("read", libc::SYS_read),
    ("pread64", libc::SYS_pread64),
    ("readv", libc::SYS_readv),
    ("preadv", libc::SYS_preadv),
    ("fstat", libc::SYS_fstat),
    ("getdents64", libc::SYS_getdents64),
    ("lseek", libc::SYS_lseek),
    ("write", libc::SYS_write),
    ("pwrite64", libc::SYS_pwrite64),
    ("fsync", libc::SYS_fsync),
    ("fdatasync", libc::SYS_fdatasync),
    ("ftruncate", libc::SYS_ftruncate),
    ("fchmod", libc::SYS_fchmod),
    ("copy_file_range", libc::SYS_copy_file_range),
];

/// Returns the call that a stopped thread is about to make, with its file, if that file is below `root`.
pub(crate) fn on_file_below(
    thread: Pid,
    registers: &libc::user_regs_struct,
    root: &Path,
) -> Option<(&'static str, String)> {
    let number = i64::try_from(registers.orig_rax).ok()?;
    let (call, path) = if let Some((call, ..)) = BY_DESCRIPTOR.iter().find(|call| call.1 == number) {
        (*call, link(thread, &format!("fd/{}", registers.rdi))?)
    } else {
        by_path(thread, registers)?
    };
    path.starts_with(root).then(|| (call, path.to_string_lossy().into_owned()))
}

/// Returns the call on a path that a stopped thread is about to make, with its path.
fn by_path(thread: Pid, registers: &libc::user_regs_struct) -> Option<(&'static str, PathBuf)> {
    let number = i64::try_from(registers.orig_rax).ok()?;
    let (call, _, argument, has_directory) = BY_PATH.iter().find(|call| call.1 == number)?;
    let path = text_at(thread, [registers.rdi, registers.rsi][*argument])?;
    let is_below = *has_directory && registers.rdi & 0xffff_ffff != u64::from(libc::AT_FDCWD.cast_unsigned());
    let above = if is_below { link(thread, &format!("fd/{}", registers.rdi)) } else { link(thread, "cwd") };
    Some((call, above?.join(path)))
}

fn link(thread: Pid, name: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{thread}/{name}")).ok()
}

/// Reads a zero-terminated text from the memory of a stopped thread.
fn text_at(thread: Pid, mut address: u64) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    loop {
        let word = ptrace::read(thread, address as ptrace::AddressType).ok()?;
        for byte in word.to_ne_bytes() {
            if byte == 0 {
                return Some(PathBuf::from(OsString::from_vec(bytes)));
            }
            bytes.push(byte);
        }
        if bytes.len() > 4096 {
            return None;
        }
        address += 8;
    }
}

/// Returns whether a call syncs written data to disk.
pub(crate) fn syncs(call: &str) -> bool {
    ["fsync", "fdatasync", "syncfs", "sync_file_range"].contains(&call)
}

/// Returns whether a call gives something its final name. A file that is only opened is temporary, or is written
/// before its name counts.
pub(crate) fn gives_name(call: &str) -> bool {
    let gives =
        ["rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "mkdir", "mkdirat"];
    gives.contains(&call)
}

/// Returns whether a call removes a name.
pub(crate) fn takes_name(call: &str) -> bool {
    ["unlink", "unlinkat", "rmdir"].contains(&call)
}

/// Returns whether a call takes space or an inode of a filesystem.
pub(crate) fn takes_space(call: &str) -> bool {
    let takes = [
        "write",
        "pwrite64",
        "writev",
        "copy_file_range",
        "open",
        "openat",
        "openat2",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlinkat",
        "mkdir",
        "mkdirat",
        "fallocate",
    ];
    takes.contains(&call)
}

/// Returns the call that a stopped thread is about to make, with its subject, if it changes something.
pub(crate) fn about_to_be_made(
    thread: Pid,
    registers: &libc::user_regs_struct,
) -> Option<(&'static str, String)> {
    let number = i64::try_from(registers.orig_rax).ok()?;
    let call = *CALLS.iter().find(|call| call.number == number)?;
    let text = |path: Option<PathBuf>| path.unwrap_or_default().to_string_lossy().into_owned();
    let on = || text(link(thread, &format!("fd/{}", registers.rdi)));
    let creates = |flags: u64| flags & u64::from((libc::O_CREAT | libc::O_TRUNC).unsigned_abs()) != 0;
    let changes = match call.when {
        When::Always => true,
        When::OnFileOrSocket => {
            on().starts_with('/') && !on().starts_with("/dev/") || on().starts_with("socket:")
        }
        When::CreatesByArgument if call.number == libc::SYS_open => creates(registers.rsi),
        When::CreatesByArgument => creates(registers.rdx),
        When::CreatesByStructure => {
            let flags = ptrace::read(thread, registers.rdx as ptrace::AddressType);
            flags.is_ok_and(|flags| creates(flags.cast_unsigned()))
        }
        When::Clones => registers.rsi == FICLONE,
    };
    let about =
        if call.by_descriptor { on() } else { text(by_path(thread, registers).map(|(_, path)| path)) };
    changes.then_some((call.name, about))
}
