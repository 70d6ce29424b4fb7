//! Nodes that write steps together: their saves, their restarts, and the steps that they resume from.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stepvault_core::ErrorKind;
use stepvault_core::config::RestoreSync;
use stepvault_engine::memory::MemoryBudget;
use stepvault_engine::restore::{RestoreContext, RestoreRequest, Target, Together, restore};
use stepvault_local::vault::Vault;

use crate::actor::Role;
use crate::content;
use crate::world::{Later, PartOfSave, UnderWay, World};

/// How long a node waits for the records of the others.
const PATIENCE: Duration = Duration::from_secs(30);

impl World {
    /// All nodes save the next step: some later than others, and now and then one not at all. No node saves before
    /// all of them know what to resume from, because they train in step.
    pub fn save_together(&mut self, team: usize) {
        if self.teams[team].asking.load(Ordering::Relaxed) > 0 {
            return;
        }
        let common: Vec<u8> = (0..self.numbers.usize(0..80)).map(|_| self.numbers.u8(..)).collect();
        let here = &mut self.teams[team];
        here.step += 10;
        here.saves += 1;
        let (launch, step, save) = (here.launch, here.step, here.saves);
        for site in self.sites_of(team) {
            let part = PartOfSave { site, launch, step, save, common: common.clone() };
            match self.numbers.u32(0..12) {
                0 => {}
                1..4 => self.after(500..90_000, Later::SavePart(part)),
                _ => self.save_part(&part),
            }
        }
    }

    /// A node writes its part, unless its trainer was ended before.
    pub fn save_part(&mut self, part: &PartOfSave) {
        let Some((team, rank)) = self.sites[part.site].team else {
            return;
        };
        if self.teams[team].launch != part.launch || !self.sites[part.site].runs {
            return;
        }
        let (elapsed, count) = (self.trace.elapsed(), self.teams[team].size);
        let here = &mut self.sites[part.site];
        let off = *here.machine.clock_off_seconds.lock().unwrap();
        let (step, content) = here.trainer.save_part(elapsed, off, part.step, rank, &part.common);
        self.trace.note(&here.machine, format_args!("saves its part of step {step}"));
        let mut judge = self.judge.lock().unwrap();
        judge.part_written(here.run, step, part.save, rank, count, content);
        here.shared.idle.store(false, Ordering::Relaxed);
        here.shared.wake.notify_one();
    }

    /// The job starts again on all nodes, sometimes after its epilog.
    pub async fn restart_team(&mut self, team: usize, lost: Option<usize>) {
        self.teams[team].launch += 1;
        let launch = self.teams[team].launch;
        let sites = self.sites_of(team);
        self.trace.note("job", format_args!("launch {launch} of team {team}, lost: {lost:?}"));
        self.end_processes(team).await;
        if self.numbers.u32(0..3) > 0 {
            self.start_team(team, lost).await;
            return;
        }
        // It uploads what the nodes have for as long as the next start leaves it.
        self.tally.lock().unwrap().epilogs += 1;
        self.teams[team].epilog = Some(UnderWay::new(&self.teams[team].asking));
        for site in sites.into_iter().filter(|site| Some(*site) != lost) {
            self.start_agent_as(site, true);
        }
        self.after(100..120_000, Later::TeamStart { team, lost });
    }

    /// Ends all processes of a team. Events that were planned for them are void.
    async fn end_processes(&mut self, team: usize) {
        self.later
            .retain(|(_, deed)| !matches!(deed, Later::TeamStart { team: other, .. } if *other == team));
        self.teams[team].epilog = None;
        for site in self.sites_of(team) {
            let machine = Arc::clone(&self.sites[site].machine);
            machine.cut_power().await;
            machine.thaw();
            self.later
                .retain(|(_, deed)| !matches!(deed, Later::Restart { site: other, .. } if *other == site));
        }
    }

    fn sites_of(&self, team: usize) -> Vec<usize> {
        (0..self.sites.len())
            .filter(|index| self.sites[*index].team.is_some_and(|(of, _)| of == team))
            .collect()
    }

    /// All nodes ask what to resume from, and their agents start with them.
    pub async fn start_team(&mut self, team: usize, lost: Option<usize>) {
        self.end_processes(team).await;
        let launch = self.teams[team].launch;
        if let Some(lost) = lost {
            let directory = &self.sites[lost].directory;
            std::fs::remove_dir_all(directory).unwrap();
            std::fs::create_dir(directory).unwrap();
        }
        let run = self.teams[team].run;
        let newest = self.judge.lock().unwrap().visible(0, run).into_keys().next_back();
        self.teams[team].step = newest.map_or(0, |id| id.step.number());
        for site in self.sites_of(team) {
            self.restore_together(site, launch);
            self.start_agent(site);
        }
    }

    fn restore_together(&mut self, site: usize, launch: u64) {
        let machine = Arc::clone(&self.sites[site].machine);
        let run = self.sites[site].run;
        let actor = self.process(&machine, Role::Restorer);
        let remotes = self.uploaded(self.remotes(&machine, &actor, run));
        let directory = self.root.path().join(format!("restored-{}", actor.process));
        let vault = self.sites[site].directory.join("vault");
        let together =
            Together { writer: self.writer(site), since: self.clock(&machine), patience: PATIENCE };
        let (judge, trace, tally) =
            (Arc::clone(&self.judge), Arc::clone(&self.trace), Arc::clone(&self.tally));
        let observer = Arc::clone(&self.observer);
        let bug = self.bug;
        let asking = self.sites[site].team.map(|(team, _)| UnderWay::new(&self.teams[team].asking));
        let work = async move {
            let _asking = asking;
            let context = RestoreContext {
                vault: Vault::open(&vault).unwrap(),
                remotes,
                sync: RestoreSync::Full,
                budget: MemoryBudget::new(0),
                observer,
            };
            let name = context.remotes[0].keys.run().clone();
            let request = RestoreRequest {
                together: Some(together),
                resumes: true,
                ..RestoreRequest::newest(name, Target::As(directory.clone()))
            };
            // Nodes that do not know of each other agree on nothing.
            let counts = bug.is_none();
            match restore(&context, &request).await {
                Ok(report) => {
                    let id = report.plan.id;
                    trace.note(&actor, format_args!("goes on from {id} in launch {launch}"));
                    tally.lock().unwrap().agreed += 1;
                    let got = content::of_directory(&directory);
                    let from: Vec<usize> =
                        if report.plan.sources.contains(&stepvault_core::observe::Tier::Local) {
                            Vec::new()
                        } else {
                            (0..context.remotes.len()).collect()
                        };
                    let mut judge = judge.lock().unwrap();
                    judge.renamed_in(context.vault.as_ref(), run);
                    judge.restored((run, id), &got, &from);
                    if counts {
                        judge.resumed(run, launch, &actor, Some(id));
                    }
                    drop(judge);
                    std::fs::remove_dir_all(&directory).unwrap();
                }
                Err(error) => {
                    trace.note(&actor, format_args!("goes on from nothing: {:?}", error.kind()));
                    // This excludes a step that they agreed on and that was deleted since.
                    let agreed_on_none = error
                        .hint_text()
                        .is_none_or(|hint| !hint.starts_with("restart the job on all nodes"));
                    if error.kind() == ErrorKind::NotFound && agreed_on_none && counts {
                        judge.lock().unwrap().resumed(run, launch, &actor, None);
                    }
                }
            }
        };
        self.operate(&machine, work);
    }
}
