//! Copies inside the directory: by the file system itself where it can share the blocks, never by hard link, so that
//! a file that somebody edits or that rots stays one file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::{Error, ErrorKind, Result};
use stepvault_local::durable::CreateOutcome;
use stepvault_local::errors;

use super::blocking::Blocking;
use super::layout::{Layout, parent, temporary_name};
use super::placing::{in_directory_of, place};

const WHAT: &str = "cannot copy the object";
/// Copied in one call; between calls the copy can be given up.
const CHUNK_BYTES: u64 = 64 << 20;

/// A half-written file that goes when it is not placed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    file: File,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Gone already when it was placed.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Copies `from` to the free key `to`.
pub(super) async fn copy(layout: &Layout, blocking: Blocking, from: &str, to: &str) -> Result<CreateOutcome> {
    let target = layout.path(to)?;
    let begin = {
        let (layout, from, to) = (layout.clone(), from.to_owned(), to.to_owned());
        move || begin(&layout, &from, &to)
    };
    let Some((source, temporary, size_bytes)) = blocking.run(WHAT, &target, 0, begin).await? else {
        return Ok(CreateOutcome::Exists);
    };
    let (source, temporary) = (Arc::new(source), Arc::new(temporary));
    let mut copied_bytes = 0;
    while copied_bytes < size_bytes {
        let wanted = CHUNK_BYTES.min(size_bytes - copied_bytes);
        let (source, temporary) = (Arc::clone(&source), Arc::clone(&temporary));
        let chunk = move || copy_chunk(&source, &temporary, wanted);
        copied_bytes += blocking.run(WHAT, &target, wanted, chunk).await?;
    }
    let (layout, to) = (layout.clone(), to.to_owned());
    blocking
        .run(WHAT, &target, 0, move || {
            place(WHAT, &layout, &temporary.file, &temporary.path, &to)
        })
        .await
}

/// Opens both ends; `None` when the target is taken.
fn begin(layout: &Layout, from: &str, to: &str) -> Result<Option<(File, Temporary, u64)>> {
    let source_path = layout.path(from)?;
    let source = layout.open(WHAT, from)?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, WHAT)
            .on(source_path.display())
            .because("it does not exist")
    })?;
    let size_bytes = source
        .metadata()
        .map_err(|error| errors::io(WHAT, &source_path, error))?
        .len();
    if layout.open(WHAT, to)?.is_some() {
        return Ok(None);
    }
    let path = parent(&layout.path(to)?).join(temporary_name());
    let file = in_directory_of(WHAT, layout, to, || create(&path))?;
    Ok(Some((source, Temporary { path, file }, size_bytes)))
}

fn create(path: &Path) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| errors::io(WHAT, path, error))
}

/// Goes on from where both files' positions are; the standard library lets the kernel do it.
fn copy_chunk(source: &File, temporary: &Temporary, wanted_bytes: u64) -> Result<u64> {
    let copied = io::copy(&mut source.take(wanted_bytes), &mut &temporary.file);
    match copied.map_err(|error| errors::io(WHAT, &temporary.path, error))? {
        0 => Err(Error::new(ErrorKind::Damaged, WHAT)
            .on(temporary.path.display())
            .because("its source was cut short while it was copied")),
        copied => Ok(copied),
    }
}
