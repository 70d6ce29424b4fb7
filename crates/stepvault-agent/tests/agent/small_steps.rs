//! Small steps that wait for a remote are uploaded at once, after the newest one.

use std::time::Duration;

use stepvault_core::ids::StepId;
use stepvault_testkit::faults::FaultAction;
use stepvault_testkit::s3::StrictS3;

use crate::harness::{Node, id};
use crate::support::{committed, fail_all, sealed};

/// Steps 1 to `count` of a file of so many bytes, sealed while their remote is away.
async fn waiting(node: &Node, server: &StrictS3, count: u64, bytes: usize) {
    fail_all(server, &FaultAction::refuse(503, "SlowDown"));
    for step in 1..=count {
        let name = format!("step_{step}");
        node.save(&name, &[("model.safetensors", bytes)], count - step + 1);
    }
    let report = node.once(node.options(vec![node.s3_remote("s3", server, 1).await]));
    assert_eq!((report.sealed.total, report.uploaded.total), (count, 0), "{report:?}");
    server.faults().clear();
    server.faults().clear_requests();
}

/// Answers each claim late.
fn delay_claims(server: &StrictS3) {
    let late = FaultAction::Delay(Duration::from_millis(500));
    server.faults().inject("PUT", "/attempts/", u64::MAX, late);
}

/// The step numbers of the objects of a kind that were put, in order of arrival.
fn put(server: &StrictS3, kind: &str) -> Vec<String> {
    let requests = server.faults().requests().into_iter();
    let names = requests.filter(|request| request.method == "PUT" && request.path.contains(kind));
    names
        .map(|request| {
            request.path.split(['?', '/']).rfind(|part| part.contains(".json")).unwrap().to_owned()
        })
        .collect()
}

#[tokio::test]
async fn the_newest_one_goes_alone_and_those_behind_it_at_once() {
    let (node, server) = (Node::new(), StrictS3::start());
    waiting(&node, &server, 12, 1000).await;
    // Those that are sent at once arrive before the first of them is committed.
    delay_claims(&server);
    let remote = node.s3_remote("s3", &server, 5).await;
    let report = node.once(node.options(vec![remote.clone()]));
    assert!(report.is_durable(), "{:?}", report.left.not_durable);
    assert_eq!(report.uploaded.total, 12);
    assert_eq!(committed(&remote).await, (1..=12).map(|step| id(1, step)).collect::<Vec<_>>());
    let requests = server.faults().requests();
    let puts: Vec<&str> = requests
        .iter()
        .filter(|request| request.method == "PUT" && !request.path.contains("/probes/"))
        .map(|request| request.path.as_str())
        .collect();
    let claims: Vec<usize> = (0..puts.len()).filter(|at| puts[*at].contains("/attempts/")).collect();
    assert_eq!(claims.len(), 12);
    assert!(puts[claims[0]].contains("000000000012.a1"), "{puts:?}");
    let committed_newest = puts.iter().position(|path| path.contains("/commits/000000000012.a1")).unwrap();
    assert!(claims[1..].iter().all(|at| *at > committed_newest), "{puts:?}");
    let next_committed = committed_newest + 1;
    let next_committed = puts[next_committed..].iter().position(|path| path.contains("/commits/"));
    assert!(*claims.last().unwrap() <= committed_newest + next_committed.unwrap(), "{puts:?}");
}

#[tokio::test]
async fn one_that_fails_is_retried_alone_and_takes_no_other_with_it() {
    let (node, server) = (Node::new(), StrictS3::start());
    waiting(&node, &server, 6, 1000).await;
    server.faults().inject("PUT", "step_3/", u64::MAX, FaultAction::refuse(400, "InvalidRequest"));
    let remote = node.s3_remote("s3", &server, 5).await;
    let report = node.once(node.options(vec![remote.clone()]));
    let left: Vec<StepId> = report.left.not_durable.iter().map(|step| step.id).collect();
    assert_eq!(left, [id(1, 3)], "{:?}", report.left.not_durable);
    assert_eq!(committed(&remote).await, [1, 2, 4, 5, 6].map(|step| id(1, step)));
    assert!(sealed(&node).contains(&id(1, 3)));
    server.faults().clear();
    let report = node.once(node.options(vec![remote.clone()]));
    assert!(report.is_durable() && report.uploaded.total == 1, "{report:?}");
}

#[tokio::test]
async fn a_large_step_goes_alone() {
    let (node, server) = (Node::new(), StrictS3::start());
    waiting(&node, &server, 3, 9 << 20).await;
    delay_claims(&server);
    let remote = node.s3_remote("s3", &server, 5).await;
    assert!(node.once(node.options(vec![remote])).is_durable());
    let order: Vec<String> = [3, 2, 1].map(|step| format!("{step:012}.a1.json")).into();
    assert_eq!((put(&server, "/attempts/"), put(&server, "/commits/")), (order.clone(), order));
}
