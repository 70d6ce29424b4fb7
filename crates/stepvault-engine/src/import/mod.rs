//! Makes steps that another program has written to a remote steps of a run. Their objects stay where they are: an import
//! writes records beside them. The plan is made here, from one listing and the headers of the files; [`write`] carries it out.

mod trust;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stepvault_core::file_parts::FileParts;
use stepvault_core::ids::RECORDS_DIRECTORY;
use stepvault_core::imported::{IMPORT_NODE, ImportPlacement, ImportSource, Imported, StepsOfRun};
use stepvault_core::keys::is_in_layout;
use stepvault_core::manifest::Shape;
use stepvault_core::records::Claim;
use stepvault_core::step_origin::BestName;
use stepvault_core::words::count;
use stepvault_core::{Attempt, Error, ErrorKind, RelativePath, RemoteUrl, Result, Step, StepId, Timestamp};
use stepvault_formats::find::{FindOptions, Found, StepIdentity};
use stepvault_formats::profile::{Profile, ProfileSet, last_component};
use stepvault_formats::tree::Tree;
use stepvault_local::sealed::SealedStep;
use stepvault_local::vault::Vault;
use trust::{TrustedObjects, ensure_has_checksums};
pub use write::{ImportOutcome, Imports, import_steps};

use crate::blocking::{blocking, in_order, sealed_steps};
use crate::inspect::{
    InspectRequest, InspectedStep, Inspection, RemoteDirectory, RemoteReads, inspect_remote, named,
};
use crate::tier::catalog::{PARALLEL_READS, claimed_ids};
use crate::tier::removed::{RemovedSteps, removed_steps};
use crate::tier::run_remote::RunRemote;
use crate::tier::step_state::{visible_commits, visible_steps};

/// Requests for the records of one step, without those for its objects: claim, part manifest and commit are written and
/// read back, and the step's removal is looked for three times.
const RECORD_REQUESTS: u64 = 14;
/// Requests that find out whether the store verifies checksums.
const PROBE_REQUESTS: u64 = 15;
/// Paths beside the steps that are named.
const MAX_OTHERS: usize = 100;
/// Objects in a page of a listing.
const PAGE_OBJECTS: u64 = 1_000;

/// What is imported.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The run on the remote that has the objects.
    pub remote: RunRemote,
    /// The run's other remotes, and its vault: what is there decides too which steps may be added.
    pub others: Vec<RunRemote>,
    /// The vault, if there is one.
    pub vault: Option<Vault>,
    /// What is imported: a prefix below the remote's URL.
    pub url: RemoteUrl,
    /// The profiles to choose from.
    pub profiles: Arc<ProfileSet>,
    /// The profile to use, instead of detecting one.
    pub profile: Option<String>,
    /// Rules for steps whose completeness nothing proves.
    pub options: FindOptions,
    /// The attempt of the imported steps, instead of the lowest one of the run.
    pub attempt: Option<Attempt>,
    /// Takes the checksums that the store keeps of whole objects, instead of reading these.
    pub trusts_store: bool,
}

/// A step that becomes one of the run.
#[derive(Debug, Clone)]
pub struct StepToImport {
    /// Its identity in the run.
    pub id: StepId,
    /// Its path below the prefix.
    pub path: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// Number of its files.
    pub files: u64,
    /// About how many requests it takes.
    pub requests: u64,
    identity: StepIdentity,
    best: Vec<BestName>,
    source: ImportSource,
    shape: Shape,
    trusted: TrustedObjects,
    /// What it consists of, by paths inside it.
    tree: Tree,
    /// Where its files are below its prefix, each with whether it is a directory; `None` for all of it.
    roots: Vec<(Option<String>, bool)>,
}

/// Something below the prefix that is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftAlone {
    /// Its path below the prefix.
    pub path: String,
    /// Its number, if it is a step with one.
    pub step: Option<u64>,
    /// Why.
    pub reasons: Vec<String>,
}

/// What an import would do.
#[derive(Debug)]
pub struct ImportPlan {
    /// The profile that the steps were found by.
    pub framework: String,
    /// The steps to add, the lowest first.
    pub steps: Vec<StepToImport>,
    /// Steps of the run that were imported before, by their paths.
    pub known: Vec<(StepId, String)>,
    /// What was found and is not added.
    pub left: Vec<LeftAlone>,
    /// What a user should know besides.
    pub warnings: Vec<String>,
    /// What it took to find the steps.
    pub reads: RemoteReads,
}

/// Lists what lies below a prefix, checks it by the headers of its files, and decides which steps become steps of the run.
/// Writes nothing.
///
/// # Errors
/// [`ErrorKind::Usage`] when the prefix is not below the remote's URL, or no step lies directly there; that of the store.
pub async fn plan_import(request: &ImportRequest, now: Timestamp) -> Result<ImportPlan> {
    let remote = &request.remote;
    let below = prefix_below(&remote.settings.url, &request.url)?;
    if request.trusts_store {
        ensure_has_checksums(remote)?;
    }
    let inner = RemoteUrl { prefix: below, ..request.url.clone() };
    let listed = RemoteDirectory::list(Arc::clone(&remote.store), &inner, false).await;
    let (directory, _guard) = listed.map_err(|error| match error.kind() {
        ErrorKind::Usage => {
            Error::new(ErrorKind::Usage, WHAT).on(&request.url).because("no object lies there")
        }
        _ => error,
    })?;
    let (inspected, owned) = (directory.clone(), request.clone());
    let inspection = blocking(move || {
        let request = InspectRequest {
            profiles: &owned.profiles,
            profile: owned.profile.as_deref(),
            options: owned.options,
            reads_best: true,
            deep: None,
        };
        inspect_remote(&inspected, &request, now)
    })
    .await?;
    if inspection.steps.is_empty() {
        return Err(without_steps(&request.url, &inspection));
    }
    let StepsFound { run, removed, trusted } = steps_of_run(request).await?;
    let mut plan = ImportPlan {
        framework: inspection.framework.clone(),
        steps: Vec::new(),
        known: Vec::new(),
        left: Vec::new(),
        warnings: inspection.warnings.clone(),
        reads: directory.reads(),
    };
    let mut planning = Planning {
        request,
        directory: directory.directory_of(&inspection),
        tree: directory.tree_of(&inspection),
        run,
    };
    let numbers = inspection.steps.iter().filter_map(|entry| Step::new(entry.step.step?).ok());
    planning.run.removed.extend(numbers.flat_map(|step| removed.retired.of_step(step)));
    planning.fill(inspection, &mut plan)?;
    if request.trusts_store {
        for step in &mut plan.steps {
            step.trust_store(remote).await?;
        }
        if let Some(first) = plan.steps.iter_mut().find(|step| step.trusted_files() > 0) {
            first.requests += PROBE_REQUESTS;
        }
    } else {
        let stay = plan.known.iter().filter(|(id, _)| trusted.contains(id)).count() as u64;
        if stay > 0 {
            let steps = count(stay, "step");
            plan.warnings
                .push(format!("{steps} imported with --trust-store before: left as it is, and not read"));
        }
    }
    Ok(plan)
}

/// What a run has.
struct StepsFound {
    run: StepsOfRun,
    removed: RemovedSteps,
    /// The steps that have files without digests.
    trusted: BTreeSet<StepId>,
}

const WHAT: &str = "cannot import";
const TEMPORARY: &str = "its name is used only while a step is written";

/// Returns the remote below whose URL another one lies: of several the nearest.
///
/// # Errors
/// [`ErrorKind::Usage`] when no remote has it.
pub fn remote_with<'a>(remotes: &'a [RunRemote], url: &RemoteUrl) -> Result<&'a RunRemote> {
    let mut error = Error::new(ErrorKind::Usage, WHAT).on(url).because("the run has no remote");
    let mut found: Option<&RunRemote> = None;
    for remote in remotes {
        match prefix_below(&remote.settings.url, url) {
            Ok(_)
                if found.is_none_or(|found| {
                    found.settings.url.prefix.len() < remote.settings.url.prefix.len()
                }) =>
            {
                found = Some(remote);
            }
            Ok(_) => {}
            Err(other) => error = other,
        }
    }
    found.ok_or_else(|| match error.hint_text() {
        Some(_) => error,
        None => error.hint(format!("give one that has it, such as --remote {}", root_of(url))),
    })
}

/// Returns a URL that a remote with this one may have.
fn root_of(url: &RemoteUrl) -> RemoteUrl {
    let above = url.prefix.rsplit_once('/').map_or("", |(above, _)| above);
    let prefix = if url.scheme.is_directory() { above.to_owned() } else { String::new() };
    RemoteUrl { prefix, ..url.clone() }
}

/// Returns a URL's prefix relative to a remote's.
fn prefix_below(remote: &RemoteUrl, url: &RemoteUrl) -> Result<String> {
    let is_same_store = (remote.scheme, &remote.bucket) == (url.scheme, &url.bucket);
    let below = match remote.prefix.as_str() {
        "" => Some(url.prefix.as_str()),
        root => url.prefix.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    let below = below.filter(|_| is_same_store).map(|below| below.trim_matches('/').to_owned());
    below.ok_or_else(|| {
        Error::new(ErrorKind::Usage, WHAT)
            .on(url)
            .because(format!("it is not below {remote}, where the run's records are"))
            .hint(format!("give a remote that has it, such as --remote {}", root_of(url)))
    })
}

fn without_steps(url: &RemoteUrl, inspection: &Inspection) -> Error {
    let error = Error::new(ErrorKind::Usage, WHAT).on(url);
    match inspection.below.as_slice() {
        [] => error
            .because("no step lies there")
            .hint(format!("see what 'stepvault inspect {url}' finds; --profile NAME selects a framework")),
        below => {
            let urls: Vec<String> = below.iter().map(|run| format!("{url}/{}", run.directory)).collect();
            error
                .because(format!("the steps lie in {}", urls.join(", ")))
                .hint("import each of them as a run of its own")
        }
    }
}

/// Reads which steps a run has on all its tiers, and where its imported ones are from.
///
/// # Errors
/// When a tier cannot be read: nothing is added to a run whose newest step is not known.
async fn steps_of_run(request: &ImportRequest) -> Result<StepsFound> {
    let remote = &request.remote;
    let commits = visible_commits(remote).await?;
    let (claimed, removed) = tokio::try_join!(claimed_ids(remote), removed_steps(remote))?;
    let mut run = StepsOfRun { removed: removed.tombstoned.clone(), ..StepsOfRun::default() };
    let mut trusted = BTreeSet::new();
    for (id, found) in commits {
        let commit = found.commit?;
        trusted.extend((commit.trusted_files() > 0).then_some(id));
        let imported = commit.parts.iter().find_map(|part| part.imported.clone());
        let source = imported.map(|imported| ImportSource { imported, name: commit.name.clone() });
        run.committed.insert(id, source);
    }
    let begun = claimed.into_keys().filter(|id| !run.committed.contains_key(id) && !removed.contains(*id));
    let begun = in_order(PARALLEL_READS, begun, |id| async move {
        let claim: Option<Claim> = remote.read_usable_record(&remote.keys.claim(id)).await?;
        let is_import =
            claim.is_some_and(|claim| claim.nodes.iter().all(|node| node.as_str() == IMPORT_NODE));
        Ok((id, is_import))
    });
    let begun = begun.await?.into_iter().filter(|(_, is_import)| !is_import);
    run.uploading = begun.map(|(id, _)| id).collect();
    for other in &request.others {
        run.uploading.extend(visible_steps(other).await?.into_keys());
    }
    if let Some(vault) = &request.vault {
        let sealed = sealed_steps(vault, remote.keys.run()).await?.steps;
        run.uploading.extend(sealed.iter().map(SealedStep::id));
    }
    // What is imported here may have been copied or restored.
    let committed = &run.committed;
    run.uploading.retain(|id| !committed.contains_key(id));
    Ok(StepsFound { run, removed, trusted })
}

/// What decides which of the found steps are added.
struct Planning<'a> {
    request: &'a ImportRequest,
    /// The key of the directory to which paths are relative; `None` for the remote's own.
    directory: Option<String>,
    tree: Tree,
    run: StepsOfRun,
}

impl Planning<'_> {
    fn fill(mut self, inspection: Inspection, plan: &mut ImportPlan) -> Result<()> {
        let profile = named(&self.request.profiles, &inspection.framework)?;
        let has_resumable = inspection.steps.iter().any(|entry| entry.step.resumable && entry.is_valid());
        let Found { temporary, copies, .. } = inspection.found;
        let mut found = inspection.steps;
        // Of several paths with one number, one that stays as it is comes first.
        found.sort_by_key(|entry| (entry.step.step, !entry.step.resumable, entry.step.rewritten));
        let mut taken: BTreeMap<u64, String> = BTreeMap::new();
        for entry in &found {
            let (path, number) = (entry.step.path.clone(), entry.step.step);
            let mut left = |reasons: Vec<String>| {
                plan.left.push(LeftAlone { path: path.clone(), step: number, reasons });
            };
            if !entry.is_valid() || temporary.contains(&path) {
                let is_temporary = temporary.contains(&path).then(|| TEMPORARY.to_owned());
                left(entry.reasons().into_iter().chain(is_temporary).collect());
                continue;
            }
            if has_resumable && !entry.step.resumable {
                left(vec!["the trainer cannot resume from it".to_owned()]);
                continue;
            }
            if let Some(other) = number.and_then(|number| taken.get(&number)) {
                left(vec![format!("{other} has the same number")]);
                continue;
            }
            match self.place(entry, profile) {
                Ok((ImportPlacement::New(id), step)) => plan.steps.push(StepToImport { id, ..step }),
                Ok((ImportPlacement::Known(id), _)) => plan.known.push((id, path.clone())),
                Ok((ImportPlacement::Left(why), _)) | Err(why) => {
                    left(vec![why]);
                    continue;
                }
            }
            taken.extend(number.map(|number| (number, path)));
        }
        let unnamed = |path: String, why: &str| LeftAlone { path, step: None, reasons: vec![why.to_owned()] };
        let is_named = |left: &[LeftAlone], path: &String| left.iter().any(|known| known.path == *path);
        for (paths, why) in [(temporary, TEMPORARY), (copies, "it is a copy of a step")] {
            let paths = paths.into_iter().filter(|path| !is_named(&plan.left, path)).collect::<Vec<_>>();
            plan.left.extend(paths.into_iter().map(|path| unnamed(path, why)));
        }
        self.add_others(&found, plan);
        Ok(())
    }

    /// Determines what a found step would be stored as, or why it cannot be.
    fn place(
        &mut self,
        entry: &InspectedStep,
        profile: &Profile,
    ) -> std::result::Result<(ImportPlacement, StepToImport), String> {
        let found = &entry.step;
        let shown = |error: Error| error.to_string();
        let name = self.directory.as_deref().map(last_component);
        let identity = found.identity(profile, name)?;
        let number = identity.number.ok_or("neither its name nor its content states a number")?;
        let within = |path: &str| match &self.directory {
            Some(directory) => format!("{directory}/{path}"),
            None => path.to_owned(),
        };
        let (prefix, shape, tree, roots) = match found.members.as_slice() {
            [path] if self.tree.is_file(path) => {
                let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
                let entry = self.tree.get(path).map(|entry| (name.to_owned(), entry.clone()));
                let above = if above.is_empty() { self.directory.clone() } else { Some(within(above)) };
                (
                    above,
                    Shape::File,
                    Tree::new(entry.into_iter().collect()),
                    vec![(Some(name.to_owned()), false)],
                )
            }
            [path] => (Some(within(path)), Shape::Directory, self.tree.below(path), vec![(None, true)]),
            members => {
                let root = |path: &String| (Some(path.clone()), self.tree.is_directory(path));
                let roots = members.iter().map(root).collect();
                (self.directory.clone(), Shape::Directory, self.tree.within(members, |_| true), roots)
            }
        };
        let prefix = prefix.map(RelativePath::new).transpose().map_err(shown)?;
        let keys = prefix.iter().map(RelativePath::as_str).chain(tree.files().map(|(path, _)| path));
        if keys.into_iter().any(is_in_layout) {
            return Err("it is a step of stepvault's own".to_owned());
        }
        let sizes = || tree.files().filter_map(|(path, _)| tree.file_size_bytes(path));
        let parts = sizes().map(|bytes| FileParts::of(bytes).map(|parts| u64::from(parts.count())));
        let parts: u64 = parts.sum::<Result<u64>>().map_err(shown)?;
        let files = sizes().count() as u64;
        let lists = 2 * (roots.len() as u64 - 1 + files.div_ceil(PAGE_OBJECTS).max(1));
        let source = ImportSource { imported: Imported { prefix }, name: identity.name.clone() };
        let placement = self.run.place(number, &source, self.request.attempt);
        let step = StepToImport {
            id: StepId::new(Attempt::FIRST, number),
            path: found.path.clone(),
            bytes: sizes().sum(),
            files,
            requests: parts + lists + RECORD_REQUESTS,
            identity,
            best: entry.best.clone(),
            source,
            shape,
            trusted: TrustedObjects::new(),
            tree,
            roots,
        };
        Ok((placement, step))
    }

    /// Names what lies beside the found steps: a path that was not recognised as a step must not be missed in silence.
    fn add_others(&self, found: &[InspectedStep], plan: &mut ImportPlan) {
        let members = found.iter().flat_map(|entry| &entry.step.members);
        let mut known: BTreeSet<&str> = members.filter_map(|path| path.split('/').next()).collect();
        known.extend(plan.left.iter().map(|left| left.path.as_str()));
        known.insert(RECORDS_DIRECTORY);
        let others = self.tree.children("").map(|(name, _)| name).filter(|name| !known.contains(name));
        let others: Vec<String> = others.map(str::to_owned).collect();
        if let Some(more) = others.len().checked_sub(MAX_OTHERS).filter(|more| *more > 0) {
            plan.warnings
                .push(format!("{} that are not part of a step are not listed", count(more as u64, "path")));
        }
        let left =
            |path| LeftAlone { path, step: None, reasons: vec!["it is not part of a step".to_owned()] };
        plan.left.extend(others.into_iter().take(MAX_OTHERS).map(left));
    }
}
