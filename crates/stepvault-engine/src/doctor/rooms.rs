//! Groups directories by filesystem, with the space that the next steps need on each.

use std::collections::BTreeMap;

use stepvault_core::room::Room;
use stepvault_diagnose::doctor::Finding;
use stepvault_diagnose::doctor::forecast::Forecast;
use stepvault_diagnose::doctor::links::SealMethod;
use stepvault_diagnose::doctor::room::{Demand, Limit, RECORDS_OF_A_STEP, room, temporary};

/// The purpose of a directory, for space calculations.
#[derive(Debug, Clone)]
pub(super) enum Use<'a> {
    /// The trainer writes steps of this forecast.
    Checkpoints(Option<&'a Forecast>),
    /// Steps of this forecast are sealed here.
    Vault(Option<&'a Forecast>, SealMethod),
    /// Frameworks may write a step of this size here before moving it to its directory.
    Temporary(Option<&'a Forecast>),
}

/// One use of one filesystem.
#[derive(Debug, Clone)]
pub(super) struct Used<'a> {
    pub(super) device: u64,
    pub(super) role: String,
    pub(super) mount_point: Option<String>,
    pub(super) room: Room,
    pub(super) quota: Option<Room>,
    pub(super) by: Use<'a>,
}

/// Returns findings for each filesystem that any of them is on.
pub(super) fn rooms(uses: &[Used<'_>]) -> Vec<Finding> {
    let mut by_device: BTreeMap<u64, Vec<&Used<'_>>> = BTreeMap::new();
    let mut order = Vec::new();
    for used in uses {
        let sharing = by_device.entry(used.device).or_default();
        if sharing.is_empty() {
            order.push(used.device);
        }
        sharing.push(used);
    }
    order
        .iter()
        .filter_map(|device| by_device.get(device))
        .flat_map(|sharing| of_filesystem(sharing))
        .collect()
}

fn of_filesystem(sharing: &[&Used<'_>]) -> Vec<Finding> {
    let Some(first) = sharing.first() else {
        return Vec::new();
    };
    let mut roles: Vec<&str> = sharing.iter().map(|used| used.role.as_str()).collect();
    roles.dedup();
    let on = first
        .mount_point
        .as_ref()
        .map(|point| format!(" on {point}"))
        .unwrap_or_default();
    let subject = format!("{}{on}", roles.join(", "));
    let only_temporary = sharing.iter().all(|used| matches!(used.by, Use::Temporary(_)));
    if only_temporary {
        let forecasts = sharing.iter().filter_map(|used| match used.by {
            Use::Temporary(forecast) => forecast,
            _ => None,
        });
        let largest = forecasts.max_by_key(|forecast| forecast.taken.bytes);
        return temporary(&subject, &first.room, largest);
    }
    let demand = demand(sharing);
    let mut findings = room(&subject, Limit::Filesystem, &first.room, demand.as_ref());
    if let Some(quota) = &first.quota {
        findings.extend(room(&subject, Limit::Quota, quota, demand.as_ref()));
    }
    findings
}

fn demand(sharing: &[&Used<'_>]) -> Option<Demand> {
    let mut demand: Option<Demand> = None;
    for used in sharing {
        let (forecast, bytes, inodes) = match &used.by {
            Use::Checkpoints(Some(forecast)) => (forecast, forecast.taken.bytes, forecast.taken.inodes()),
            Use::Vault(Some(forecast), seal_method) => {
                let (bytes, files) = match seal_method {
                    SealMethod::Copy => (forecast.taken.bytes, forecast.taken.files),
                    SealMethod::Reflink => (0, forecast.taken.files),
                    SealMethod::HardLink => (0, 0),
                };
                (
                    forecast,
                    bytes,
                    files + forecast.taken.directories + RECORDS_OF_A_STEP,
                )
            }
            _ => continue,
        };
        let sum = demand.get_or_insert_with(|| Demand {
            bytes: 0,
            inodes: 0,
            source: forecast.source.clone(),
        });
        sum.bytes = sum.bytes.saturating_add(bytes);
        sum.inodes = sum.inodes.saturating_add(inodes);
    }
    demand
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepvault_core::forecast::Taken;

    fn forecast() -> Forecast {
        Forecast {
            taken: Taken {
                bytes: 1000,
                files: 8,
                directories: 2,
            },
            interval_seconds: None,
            interval_steps: None,
            source: "the newest 3 steps in the vault".to_owned(),
        }
    }

    fn used<'a>(device: u64, role: &str, by: Use<'a>) -> Used<'a> {
        Used {
            device,
            role: role.to_owned(),
            mount_point: Some("/nvme".to_owned()),
            room: Room {
                free_bytes: 10_000,
                total_bytes: 20_000,
                free_inodes: Some(100),
                total_inodes: Some(1000),
            },
            quota: None,
            by,
        }
    }

    #[test]
    fn what_shares_a_filesystem_shares_its_room() {
        let forecast = forecast();
        let uses = [
            used(1, "checkpoints", Use::Checkpoints(Some(&forecast))),
            used(1, "vault", Use::Vault(Some(&forecast), SealMethod::HardLink)),
            used(2, "TMPDIR", Use::Temporary(Some(&forecast))),
        ];
        let sharing: Vec<&Used<'_>> = uses.iter().take(2).collect();
        let both = demand(&sharing).unwrap();
        assert_eq!((both.bytes, both.inodes), (1000, 24));
        let found = rooms(&uses);
        let subjects: Vec<&str> = found.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(
            subjects,
            [
                "checkpoints, vault on /nvme",
                "checkpoints, vault on /nvme",
                "TMPDIR on /nvme"
            ]
        );
        let copied = used(1, "vault", Use::Vault(Some(&forecast), SealMethod::Copy));
        let copied = demand(&[&uses[0], &copied]).unwrap();
        assert_eq!((copied.bytes, copied.inodes), (2000, 32));
        assert_eq!(
            demand(&[&used(1, "vault", Use::Vault(None, SealMethod::Copy))]),
            None
        );
    }
}
