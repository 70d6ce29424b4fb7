//! Reads the machine's identity from its firmware, without network requests.

use std::path::Path;

use stepvault_diagnose::doctor::notices::Firmware;
use stepvault_local::durable::read_bounded;

/// The directory in which Linux exposes it.
pub const DIRECTORY: &str = "/sys/class/dmi/id";
/// Maximum length of one of these texts.
const LONGEST_BYTES: u64 = 4096;

/// Reads it below `directory`; entries that do not exist, as in some containers and on some processors, are `None`.
pub fn firmware(directory: &Path) -> Firmware {
    let text = |name: &str| {
        let bytes = read_bounded(&directory.join(name), LONGEST_BYTES).ok()??;
        let text = String::from_utf8_lossy(&bytes);
        let plain: String = text.chars().filter(|letter| !letter.is_control()).collect();
        Some(plain.trim().to_owned()).filter(|text| !text.is_empty())
    };
    Firmware { vendor: text("sys_vendor"), product: text("product_name") }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "files as the kernel shows them")]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_what_is_missing_is_not_told() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(firmware(directory.path()), Firmware::default());
        std::fs::write(directory.path().join("sys_vendor"), "Amazon EC2\n").unwrap();
        std::fs::write(directory.path().join("product_name"), " \n").unwrap();
        let told = firmware(directory.path());
        assert_eq!((told.vendor.as_deref(), told.product), (Some("Amazon EC2"), None));
    }
}
