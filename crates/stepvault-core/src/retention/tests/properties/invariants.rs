//! Invariants of every plan.

use super::*;
use crate::retention::guards::Loss;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// S4: these steps are kept under every configuration.
    #[test]
    fn what_must_stay_stays(view in views(), rules in rules(), limits in limits(), guards in guards()) {
        let dropped = dropped(&plan(&view, &rules, &limits, &guards).unwrap());
        let newest_valid =
            view.steps.iter().filter(|step| step.verified == Verified::Yes).map(|step| step.id).max();
        for step in view.steps.iter().filter(|step| dropped.contains(&step.id)) {
            prop_assert!(Some(step.id) < newest_valid, "the newest valid step or one above it goes");
            prop_assert!(!step.needed.pinned && !step.needed.leased && !step.needed.uploading);
        }
    }

    /// S4: while a step stays, its last valid revision stays. Another one goes only for that one, if that has all its files.
    #[test]
    fn a_kept_step_keeps_its_last_revision(view in views(), rules in rules()) {
        let plan = plan(&view, &rules, &LocalLimits::default(), &Guards::default()).unwrap();
        let dropped = dropped(&plan);
        let kept = plan.decisions.iter().filter(|one| one.verdict == Verdict::Keep && !one.guarded);
        let kept: BTreeSet<StepId> = kept.map(|one| one.id.first_revision()).collect();
        for step in view.steps.iter().filter(|step| kept.contains(&step.id.first_revision())) {
            if !dropped.contains(&step.id) {
                continue;
            }
            let revisions = || view.steps.iter().filter(|other| other.id.is_revision_of(step.id));
            let valid = revisions().filter(|other| other.verified == Verified::Yes);
            let last = valid.map(|other| other.id).max();
            prop_assert!(last.is_some_and(|last| last > step.id && !dropped.contains(&last)));
            let later = revisions().filter(|other| other.id > step.id && Some(other.id) <= last);
            let later: BTreeSet<(u32, bool)> = later.map(|other| (other.id.revision.number(), other.amends)).collect();
            let first = step.id.revision.number() + 1;
            let chain: BTreeSet<(u32, bool)> =
                (first..=last.map_or(0, |last| last.revision.number())).map(|number| (number, true)).collect();
            prop_assert_eq!(later, chain);
        }
    }

    /// S4 and S6: a local copy is deleted only after every required remote had it; the only copy never is.
    #[test]
    fn local_copies_wait_for_the_remotes(view in views(), rules in rules(), limits in limits(), guards in guards()) {
        prop_assume!(view.tier == Tier::Local);
        let dropped = dropped(&plan(&view, &rules, &limits, &guards).unwrap());
        for step in view.steps.iter().filter(|step| dropped.contains(&step.id)) {
            let elsewhere: Vec<_> = step.elsewhere.durable_on.iter().chain(&step.elsewhere.retired_on).collect();
            prop_assert!(!elsewhere.is_empty());
            prop_assert!(guards.required_remotes.iter().all(|remote| elsewhere.contains(&remote)));
        }
    }

    /// S8: with an uncertain state nothing is deleted.
    #[test]
    fn doubt_deletes_nothing(view in views(), rules in rules(), limits in limits(), which in 0..3) {
        let mut view = view;
        match which {
            0 => view.unreadable.push(("key".to_owned(), "why".to_owned())),
            1 => view.steps.clear(),
            _ => {
                let damaged = || Verified::Damaged("cut off".to_owned());
                view.steps.iter_mut().for_each(|step| step.verified = damaged());
            }
        }
        let plan = plan(&view, &rules, &limits, &Guards::default()).unwrap();
        prop_assert!(plan.refusal.is_some());
        prop_assert!(plan.deletions().is_empty());
        prop_assert_eq!(plan.freed_bytes, 0);
    }

    /// S8: rules that are all zero are refused before anything is planned.
    #[test]
    fn zero_is_refused(view in views(), rules in any_rules()) {
        let refused = plan(&view, &rules, &LocalLimits::default(), &Guards::default()).is_err();
        prop_assert_eq!(refused, rules != KeepRules::default() && !rules.keeps_something());
    }

    /// L1: retention deletes exactly what it should.
    #[test]
    fn with_everything_durable_exactly_the_rest_goes(view in views(), last in 1..8_u32, local in any::<bool>()) {
        let mut view = view;
        view.steps.retain(|step| step.id == step.id.first_revision());
        prop_assume!(!view.steps.is_empty());
        view.tier = if local { Tier::Local } else { Tier::Remote(remotes()[0].clone()) };
        for step in &mut view.steps {
            (step.needed.pinned, step.needed.leased, step.needed.uploading, step.abandoned) = (false, false, false, false);
            (step.verified, step.elsewhere.unproven, step.elsewhere.durable_on) = (Verified::Yes, None, remotes().to_vec());
        }
        let rules = KeepRules { last: Some(last), ..KeepRules::default() };
        let guards = Guards { required_remotes: remotes().to_vec(), ..Guards::default() };
        let plan = plan(&view, &rules, &LocalLimits::default(), &guards).unwrap();
        let mut ids: Vec<StepId> = view.steps.iter().map(|step| step.id).collect();
        ids.sort();
        ids.truncate(ids.len().saturating_sub(last as usize));
        prop_assert_eq!(dropped(&plan), ids.into_iter().collect());
    }

    /// Any-of: two sets of rules together keep what either keeps, so another rule never deletes more.
    #[test]
    fn rules_add_up(view in views(), one in rules(), other in rules()) {
        prop_assume!(one.keeps_something() && other.keeps_something());
        // If both have a number for the same rule, only one of them can be used.
        let other = KeepRules {
            last: other.last.filter(|_| one.last.is_none()),
            every_steps: other.every_steps.filter(|_| one.every_steps.is_none()),
            within_seconds: other.within_seconds.filter(|_| one.within_seconds.is_none()),
            hourly: other.hourly.filter(|_| one.hourly.is_none()),
            daily: other.daily.filter(|_| one.daily.is_none()),
            weekly: other.weekly.filter(|_| one.weekly.is_none()),
            best: other.best,
        };
        prop_assume!(other.keeps_something());
        let both = KeepRules {
            last: one.last.or(other.last),
            every_steps: one.every_steps.or(other.every_steps),
            within_seconds: one.within_seconds.or(other.within_seconds),
            hourly: one.hourly.or(other.hourly),
            daily: one.daily.or(other.daily),
            weekly: one.weekly.or(other.weekly),
            best: one.best.iter().chain(&other.best).cloned().collect(),
        };
        let either: BTreeSet<_> = by_rules(&view, &one).intersection(&by_rules(&view, &other)).copied().collect();
        prop_assert_eq!(by_rules(&view, &both), either);
    }

    /// A larger number keeps at least as much.
    #[test]
    fn larger_numbers_keep_more(view in views(), rules in rules()) {
        prop_assume!(rules.keeps_something());
        let mut larger = rules.clone();
        for count in [&mut larger.last, &mut larger.hourly, &mut larger.daily, &mut larger.weekly] {
            *count = count.map(|count| count + 1);
        }
        larger.within_seconds = larger.within_seconds.map(|seconds| seconds + 1_000);
        larger.best.iter_mut().for_each(|rule| rule.count += 1);
        prop_assert!(by_rules(&view, &larger).is_subset(&by_rules(&view, &rules)));
    }

    /// The order in which a tier is listed, and how often, does not matter.
    #[test]
    fn the_plan_is_a_function_of_what_is_there(
        (view, shuffled) in views().prop_flat_map(|view| (Just(view.clone()), Just(view.steps).prop_shuffle())),
        rules in rules(), limits in limits(), guards in guards(),
    ) {
        let other = TierView { steps: shuffled, ..view.clone() };
        prop_assert_eq!(
            plan(&view, &rules, &limits, &guards).unwrap(),
            plan(&other, &rules, &limits, &guards).unwrap()
        );
    }

    /// The plan has every step once, oldest first, with a reason; sums are correct; deletions are ordered and limited.
    #[test]
    fn plans_are_well_formed(view in views(), rules in rules(), limits in limits(), guards in guards()) {
        let plan = plan(&view, &rules, &limits, &guards).unwrap();
        let ids: Vec<StepId> = plan.decisions.iter().map(|decision| decision.id).collect();
        let expected: BTreeSet<StepId> = view.steps.iter().map(|step| step.id).collect();
        prop_assert_eq!(ids, expected.into_iter().collect::<Vec<_>>());
        prop_assert!(plan.decisions.iter().all(|decision| !decision.reasons.is_empty()));
        let freed: u64 = plan.deletions().iter().map(|decision| decision.bytes).sum();
        let total: u64 = view.steps.iter().map(|step| step.bytes).sum();
        prop_assert_eq!((plan.freed_bytes, plan.kept_bytes), (freed, total - freed));
        let order: Vec<_> = plan.deletions().iter().map(|decision| (!decision.abandoned, decision.id)).collect();
        prop_assert!(order.is_sorted());
        prop_assert!(guards.maximum_deletions.is_none_or(|most| order.len() <= most as usize));
        prop_assert!(plan.decisions.iter().all(|one| !(one.guarded && one.verdict == Verdict::Drop)));
    }

    /// The cap allows the first of the uncapped deletions, and no others.
    #[test]
    fn the_cap_takes_the_first(view in views(), rules in rules(), most in 0..6_u32) {
        let all = plan(&view, &rules, &LocalLimits::default(), &Guards::default()).unwrap();
        let guards = Guards { maximum_deletions: Some(most), ..Guards::default() };
        let capped = plan(&view, &rules, &LocalLimits::default(), &guards).unwrap();
        let ids = |plan: &RetentionPlan| plan.deletions().iter().map(|decision| decision.id).collect::<Vec<_>>();
        let first: Vec<_> = ids(&all).into_iter().take(most as usize).collect();
        prop_assert_eq!(ids(&capped), first);
    }

    /// L1 for space: a budget is met, or everything that may be deleted is and the shortage is reported.
    #[test]
    fn budgets_are_kept_or_the_shortage_is_told(view in views(), rules in rules(), budget in 0..1_000_u64) {
        prop_assume!(view.tier == Tier::Local);
        let limits = LocalLimits { maximum_bytes: Some(budget), ..LocalLimits::default() };
        let plan = plan(&view, &rules, &limits, &Guards::default()).unwrap();
        if plan.kept_bytes > budget {
            prop_assert_eq!(plan.warnings.len(), 1);
            let may_go = |one: &Decision| one.verdict == Verdict::Keep && !one.guarded && one.bytes > 0;
            prop_assert!(!plan.decisions.iter().any(may_go));
        } else {
            prop_assert!(plan.warnings.is_empty());
        }
    }

    /// S4: these steps are never given up, however full the disk is; nor are steps whose removal frees nothing.
    #[test]
    fn what_must_stay_is_never_given_up(
        views in vec(views(), 1..3), limits in limits(), guards in guards(), free in 0..1_000_u64, uploads in 0..1_000_u64,
    ) {
        let mut plans = plans_of(&views, &guards);
        make_room(&mut plans, &limits, Some(free), uploads);
        for (view, plan) in views.iter().zip(&plans) {
            let newest_valid =
                view.steps.iter().filter(|step| step.verified == Verified::Yes).map(|step| step.id).max();
            for step in &view.steps {
                if plan.decision(step.id).unwrap().verdict != Verdict::GiveUp {
                    continue;
                }
                prop_assert!(limits.give_up_undurable && view.tier == Tier::Local && plan.refusal.is_none());
                prop_assert!(Some(step.id) < newest_valid && !step.needed.pinned && !step.needed.leased);
                prop_assert!(step.reclaimable_bytes > 0);
                prop_assert!(limits.free_space_low_bytes.is_some_and(|low| free < low));
            }
            let removals = plan.deletions().len() + plan.given_up().len();
            prop_assert!(guards.maximum_deletions.is_none_or(|most| removals <= most as usize));
        }
    }

    /// Nothing is given up while a durable step could be evicted instead, nor more steps than needed, nor a step with a
    /// greater loss while another would suffice.
    #[test]
    fn no_more_is_given_up_than_has_to_be(
        views in vec(views(), 1..3), limits in limits(), low in 1..1_000_u64, percent in 0..100_u64,
    ) {
        let (limits, free) = (pressed(limits, low), low * percent / 100);
        let mut plans = plans_of(&on_local_tiers(views), &Guards::default());
        make_room(&mut plans, &limits, Some(free), 0);
        let all: Vec<&Decision> = plans.iter().filter(|plan| plan.refusal.is_none() && plan.tier == Tier::Local)
            .flat_map(|plan| &plan.decisions).collect();
        let given_up: Vec<&&Decision> = all.iter().filter(|one| one.verdict == Verdict::GiveUp).collect();
        if given_up.is_empty() {
            return Ok(());
        }
        let kept = || all.iter().filter(|one| one.verdict == Verdict::Keep && one.reclaimable_bytes > 0);
        prop_assert!(kept().all(|one| one.guarded), "a durable step is kept");
        prop_assert!(given_up.iter().all(|one| one.loss != Some(Loss::Uploading)), "no upload is broken off at 0");
        let last = given_up.iter().map(|one| (one.loss, one.created, one.id)).max().unwrap();
        prop_assert!(kept().filter(|one| one.loss.is_some_and(|loss| loss != Loss::Uploading))
            .all(|one| (one.loss, one.created, one.id) >= last), "an older one is kept");
        // Without the last one the low mark is not reached.
        let reclaimed: u64 = plans.iter().flat_map(|plan| &plan.decisions)
            .filter(|one| one.verdict != Verdict::Keep).map(|one| one.reclaimable_bytes).sum();
        let smallest = given_up.iter().filter(|one| (one.loss, one.created, one.id) == last)
            .map(|one| one.reclaimable_bytes).max().unwrap();
        prop_assert!(free + reclaimed - smallest < limits.free_space_low_bytes.unwrap());
    }

    /// L1 for space: below the low mark space is freed, or nothing is left that could free any.
    #[test]
    fn room_is_made_or_nothing_more_could(
        views in vec(views(), 1..3), limits in limits(), low in 1..1_000_u64, percent in 0..100_u64,
    ) {
        let (limits, free) = (pressed(limits, low), low * percent / 100);
        let mut plans = plans_of(&on_local_tiers(views), &Guards::default());
        make_room(&mut plans, &limits, Some(free), u64::MAX);
        let all = || plans.iter().flat_map(|plan| &plan.decisions);
        let reclaimed: u64 =
            all().filter(|one| one.verdict != Verdict::Keep).map(|one| one.reclaimable_bytes).sum();
        if free + reclaimed < limits.free_space_low_bytes.unwrap() {
            prop_assert!(plans.last().unwrap().warnings.iter().any(|text| text.contains("short of free space")));
            for plan in plans.iter().filter(|plan| plan.refusal.is_none() && plan.tier == Tier::Local) {
                prop_assert!(plan.decisions.iter().all(|one| one.verdict != Verdict::Keep
                    || one.reclaimable_bytes == 0 || one.guarded && one.loss.is_none()));
            }
        }
    }
}

/// Returns limits with a low mark that allow giving steps up.
fn pressed(limits: LocalLimits, low: u64) -> LocalLimits {
    LocalLimits { free_space_low_bytes: Some(low), give_up_undurable: true, ..limits }
}

fn on_local_tiers(views: Vec<TierView>) -> Vec<TierView> {
    let on_local = |view| TierView { tier: Tier::Local, ..view };
    views.into_iter().map(on_local).collect()
}

fn plans_of(views: &[TierView], guards: &Guards) -> Vec<RetentionPlan> {
    let of = |view: &TierView| plan(view, &KeepRules::default(), &LocalLimits::default(), guards).unwrap();
    views.iter().map(of).collect()
}
