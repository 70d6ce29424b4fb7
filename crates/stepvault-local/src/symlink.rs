//! Replaces symbolic links without a moment in which there is none.

use rustix::io::Result;

use crate::remove;
use crate::rename::{self, Place};

/// Creates a symbolic link at `to` and replaces a file or link that has its name, through a temporary name on the same
/// filesystem. Durable when it returns.
pub(crate) fn replace(by_way_of: Place<'_>, to: Place<'_>, target: &str) -> Result<()> {
    remove::entry(by_way_of.directory, by_way_of.name)?;
    rustix::fs::symlinkat(target, by_way_of.directory, by_way_of.name)?;
    rustix::fs::fsync(by_way_of.directory)?;
    rename::over(by_way_of, to)?;
    rustix::fs::fsync(to.directory)
}
