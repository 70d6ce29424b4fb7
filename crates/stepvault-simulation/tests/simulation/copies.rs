//! Copies of a run to the store that nothing is uploaded to: of what somebody chooses, or of what that store's rules select.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stepvault_core::ErrorKind;
use stepvault_engine::copy::{CopyChoice, CopyContext, CopyOutcome, CopyReport, copy_steps, plan_copy};
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::upload::CommonStore;
use stepvault_local::vault::Vault;

use crate::actor::{Actor, Role};
use crate::link::Link;
use crate::machine::Machine;
use crate::world::{Later, World};

/// What became of the steps; the error of a copy that did not begin.
type Copied = stepvault_core::Result<CopyReport>;

impl World {
    /// Steps of a run are copied, often while somebody prunes it or deletes orphans.
    pub fn copy_somewhere(&mut self) {
        let Some(fed) = self.fed.clone() else {
            return;
        };
        let site = self.any_site(|site| site.runs).filter(|_| self.numbers.bool());
        let (machine, vault, run) = if let Some(site) = site.map(|site| &self.sites[site]) {
            // As a timer on a node, with the vault of its agent.
            (Arc::clone(&site.machine), site.directory.join("vault"), site.run)
        } else {
            let other = self.numbers.usize(0..self.others.len());
            let run = self.numbers.usize(0..self.runs.len());
            (Arc::clone(&self.others[other]), self.mover(other), run)
        };
        if !self.clouds[fed.store].is_mounted() && !self.remembers(&vault, run, fed.store) {
            // To a vault that has never seen it, an empty directory is a new store.
            return;
        }
        let choice = match fed.selection {
            Some(selection) => CopyChoice::Selected(selection),
            None if self.numbers.u32(0..4) == 0 => CopyChoice::Kept(self.keep()),
            None => CopyChoice::All,
        };
        let work = self.copy(&machine, &vault, run, choice);
        self.operate(&machine, async move {
            let _ = work.await;
        });
        match self.numbers.u32(0..5) {
            0 | 1 => self.prune_on(run, 0),
            2 => {
                self.prune_on(run, fed.store);
                self.after(10_000..120_000, Later::Copy);
            }
            3 => self.gc_from_elsewhere(run, fed.store),
            _ => {}
        }
    }

    /// Returns the vault that is used for copies on a machine without a trainer.
    fn mover(&self, other: usize) -> PathBuf {
        self.root.path().join(format!("mover-{other}"))
    }

    fn copy(
        &mut self,
        machine: &Arc<Machine>,
        vault: &Path,
        run: usize,
        choice: CopyChoice,
    ) -> impl Future<Output = Copied> + use<> {
        let to = self.fed.as_ref().map_or(0, |fed| fed.store);
        self.copied_with.insert((vault.to_owned(), run));
        let actor = self.process(machine, Role::Copier);
        let mut remotes = self.remotes(machine, &actor, run);
        let is_common = !self.are_filesystems && self.numbers.bool();
        let context = CopyContext {
            common: is_common.then(|| self.common_store(machine, &actor, to)),
            to: remotes.swap_remove(to),
            from: remotes.swap_remove(0),
            budget: MemoryBudget::new(0),
            observer: Arc::clone(&self.observer),
            choice,
        };
        let (judge, trace, tally) =
            (Arc::clone(&self.judge), Arc::clone(&self.trace), Arc::clone(&self.tally));
        let vault = vault.to_owned();
        async move {
            let removed = judge.lock().unwrap().removed(to, run);
            let report = copy_once(&context, &vault).await;
            match &report {
                Ok(report) => {
                    for step in &report.steps {
                        let id = step.step.id;
                        match &step.result {
                            Ok(outcome @ (CopyOutcome::Copied | CopyOutcome::Present)) => {
                                trace.note(&actor, format_args!("{id} is {outcome:?} on store {to}"));
                                tally.lock().unwrap().copied += usize::from(*outcome == CopyOutcome::Copied);
                                judge.lock().unwrap().acknowledge_copy(to, (run, id), removed.contains(&id));
                            }
                            Ok(_) => {}
                            Err(error) => {
                                trace.note(&actor, format_args!("{id} is not copied: {:?}", error.kind()));
                            }
                        }
                    }
                }
                Err(error) => trace.note(&actor, format_args!("did not copy: {:?}", error.kind())),
            }
            report
        }
    }

    /// Returns store 0 and another one as if they were in one bucket.
    fn common_store(&self, machine: &Arc<Machine>, actor: &Actor, to: usize) -> CommonStore {
        let link = Link {
            copies_from: Some(Arc::clone(&self.clouds[0])),
            ..self.link(to, &self.weather, machine, actor)
        };
        let [from, to] = [0, to].map(|store| {
            let mut settings = self.settings(store);
            settings.url.prefix = String::new();
            settings
        });
        CommonStore::new(self.decorated(link, &to), &from, &to)
    }

    /// Checks promise L2 for copies: once faults have stopped, everything is copied that is to be.
    pub async fn copies_come_through(&mut self) {
        let Some(fed) = self.fed.clone() else {
            return;
        };
        let (machine, vault) = (Arc::clone(&self.others[0]), self.mover(0));
        for run in 0..self.runs.len() {
            let choice = fed.selection.clone().map_or(CopyChoice::All, CopyChoice::Selected);
            let copied = self.copy(&machine, &vault, run, choice).await;
            if self.tally.lock().unwrap().stores_gone_back > 0 {
                // The two stores may have different steps of one name since.
                continue;
            }
            let failed = match copied {
                Ok(report) => report.steps.into_iter().find_map(|step| step.result.err()),
                // There is no step yet.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                return self.broken("L2", format!("run {run} was not copied in calm weather: {error}"));
            }
            let missing = self.judge.lock().unwrap().missing_copy(run);
            if let Some(id) = missing {
                self.broken("L2", format!("{id} of run {run} was never copied to store {}", fed.store));
            }
        }
    }
}

/// Copies as the command does.
async fn copy_once(context: &CopyContext, vault: &Path) -> Copied {
    let vault = Vault::open_or_create(vault)?;
    context.begin(&vault).await?;
    let plan = plan_copy(context).await?;
    if plan.copies_something() { copy_steps(context, &vault, plan).await } else { Ok(plan.as_report()) }
}
