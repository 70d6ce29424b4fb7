//! Checks whether a remote that is a directory is on its own disk.

use super::check;
use crate::doctor::Finding;
use stepvault_core::remote_settings::RemoteSettings;

/// Returns the finding. A directory on the vault's filesystem is no second copy, and an unmounted mount point looks
/// the same.
pub fn device(remote: &RemoteSettings, is_vaults: bool) -> Finding {
    let check = check("own filesystem", remote);
    if is_vaults {
        check.warn(
            "on the vault's filesystem: losing it loses both copies",
            "mount the missing filesystem, or choose a directory on another disk; use a directory below a mount \
             point, not the mount point itself, so that it is missing while nothing is mounted",
        )
    } else {
        check.pass("on a different filesystem than the vault")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;
    use crate::doctor::remote::subject;

    #[test]
    fn a_copy_on_the_same_disk_is_no_second_copy() {
        let subject = subject("file:///data/archive");
        assert_eq!(device(&subject, true).outcome, Outcome::Warn);
        assert_eq!(device(&subject, false).outcome, Outcome::Pass);
    }
}
