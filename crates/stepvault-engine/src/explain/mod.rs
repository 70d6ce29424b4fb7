//! Gathers the evidence of why a run failed: the present state of disks, records and logs. Writes nothing.
//!
//! Every source has its own deadline, because the cause may be a filesystem that does not answer; that it does not
//! answer is evidence too.

mod gathered;
mod kernel;
mod logs;
mod on_disk;
mod places;
mod records;
mod steps;

use std::path::PathBuf;
use std::sync::Arc;

use stepvault_core::forecast::Taken;
use stepvault_diagnose::explain::{Scanner, settled};

pub use gathered::{ExplainRequest, Gathered, Log, LogSource, NotLookedAt};
use gathered::{STEPS_DEADLINE, within};
pub use on_disk::{ResumeOnDisk, quoted};

/// Gathers all evidence.
pub async fn gather(request: ExplainRequest) -> Gathered {
    let scanner = Arc::new(Scanner::default());
    let mut gathered = Gathered::default();
    let mut needs = Taken::default();
    for directory in &request.directories {
        let check = steps::DirectoryCheck {
            directory: directory.clone(),
            profiles: Arc::clone(&request.profiles),
            profile: request.profile.clone(),
            clock: Arc::clone(&request.clock),
        };
        let is_here = request.is_here;
        let find = move || match check.find() {
            // Its existence, and what this user may not access, are reported with its other facts.
            Err(_) if is_here && !check.directory.exists() => Ok(None),
            found => found.map(Some),
        };
        match within(STEPS_DEADLINE, find).await {
            Ok(None) => {}
            Ok(Some(found)) => {
                needs.bytes = needs.bytes.max(found.needs.bytes);
                needs.files = needs.files.max(found.needs.files);
                gathered.evidence.extend(found.evidence);
                gathered.on_disk.extend(found.on_disk);
            }
            Err(error) => gathered.miss(directory.display().to_string(), &error, true),
        }
    }
    if request.is_here {
        let devices = places::gather(&request, needs, &mut gathered).await;
        kernel::gather(devices, &scanner, &mut gathered).await;
    }
    records::gather(&request, &scanner, &mut gathered).await;
    logs::gather(request.logs, &scanner, &mut gathered).await;
    gathered.evidence = settled(gathered.evidence, &texts(&request.directories), &texts(&request.temporary));
    gathered
}

fn texts(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.display().to_string()).collect()
}
