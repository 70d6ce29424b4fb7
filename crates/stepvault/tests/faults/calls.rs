//! The system calls by which a process changes what is outside of it: on disk, or at the other end of a connection.

use nix::libc;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// One such call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    number: i64,
    /// What makes it one that changes something.
    when: When,
    /// Whether its first argument is the descriptor that it is about.
    by_descriptor: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Always,
    /// The descriptor is a file or a connection, and no pipe or event.
    OnFileOrSocket,
    /// These flags, in this argument, hold `O_CREAT` or `O_TRUNC`.
    CreatesByArgument,
    /// The same, and the flags begin the structure that the third argument points to.
    CreatesByStructure,
    /// It is a request to share another file's blocks.
    Clones,
}

/// `FICLONE`, on every architecture that numbers requests as x86 does.
const FICLONE: u64 = 0x4004_9409;

const fn call(name: &'static str, number: i64, when: When, by_descriptor: bool) -> Call {
    Call {
        name,
        number,
        when,
        by_descriptor,
    }
}

/// All of them. Which of them the binary makes is found out by watching it.
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

/// Calls that put what was written on disk.
pub(crate) fn syncs(call: &str) -> bool {
    ["fsync", "fdatasync", "syncfs", "sync_file_range"].contains(&call)
}

/// Calls that give something a name for good. What is only opened is temporary, or is written before its name counts.
pub(crate) fn gives_name(call: &str) -> bool {
    let gives = [
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "mkdir",
        "mkdirat",
    ];
    gives.contains(&call)
}

/// Calls that take something's name away.
pub(crate) fn takes_name(call: &str) -> bool {
    ["unlink", "unlinkat", "rmdir"].contains(&call)
}

/// Calls that take space or an inode of a filesystem.
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

/// A call that a stopped thread is about to make, with what it is about, if it changes something.
pub(crate) fn about_to_be_made(
    thread: Pid,
    registers: &libc::user_regs_struct,
) -> Option<(&'static str, String)> {
    let number = i64::try_from(registers.orig_rax).ok()?;
    let call = *CALLS.iter().find(|call| call.number == number)?;
    let on = || {
        let link = format!("/proc/{thread}/fd/{}", registers.rdi);
        std::fs::read_link(link).map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
    };
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
    let about = if call.by_descriptor { on() } else { String::new() };
    changes.then_some((call.name, about))
}
