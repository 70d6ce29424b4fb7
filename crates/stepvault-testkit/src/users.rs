//! Tests that run the program as another user.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The user without any rights.
pub const NOBODY: u32 = 65534;

/// Returns whether this process can become another user, for whom it copies `program` to `copy`; reports it if not.
///
/// The other user may be unable to reach the program itself. Another process copies it: were the copy open for writing
/// here, a test that starts a process at that moment would make it busy.
pub fn become_other_users(program: &Path, copy: &Path) -> bool {
    let is_open =
        |above: &Path| above.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0);
    if !rustix::process::geteuid().is_root() || !copy.ancestors().skip(1).all(is_open) {
        eprintln!("not run: only the superuser can become another user, who has to reach the program");
        return false;
    }
    if !copy.exists() {
        let status = Command::new("cp").args([program, copy]).status().unwrap();
        assert!(status.success());
    }
    true
}
