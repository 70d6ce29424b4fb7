//! Notifications: an event becomes a document, which every target that wants it receives, by webhook or command.
//!
//! Nothing waits for a target: events go into a bounded queue, each target has one of its own, and each delivery has a
//! bounded number of tries. At the end of the program, [`Notifier::finish`] waits for a few seconds at most.

mod delivery;
mod repeats;

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use stepvault_core::config::{NotifyEvent, NotifyTarget};
use stepvault_core::document::Document;
use stepvault_core::words;
use stepvault_core::{Attempt, NodeName, Observer, RemoteName, Result, RunName, Step, StepId};
use stepvault_local::{Vault, clock};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::delivery::{deliver, try_once};
use self::repeats::Repeats;
use crate::report::NotDurable;

/// Maximum number of events that wait, in all and for each target; further ones are dropped.
const QUEUE: usize = 64;
/// Maximum length of a message, in characters. Discord accepts 2,000 with what stands before it.
const MAX_MESSAGE: usize = 1500;
/// How long a program waits at its end for notifications to be delivered.
pub const LAST_MOMENTS: Duration = Duration::from_secs(5);

/// What a target receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Notification {
    /// What has happened.
    pub event: NotifyEvent,
    /// The run; null in a test.
    pub run: Option<RunName>,
    /// The step's number, if the event is about one step.
    pub step: Option<Step>,
    /// The step's attempt, if the event is about one step.
    pub attempt: Option<Attempt>,
    /// The remote, if the event is about one.
    pub remote: Option<RemoteName>,
    /// The node that sends it.
    pub node: NodeName,
    /// When it was sent, in UTC.
    pub time: String,
    /// For people: what has happened.
    pub message: String,
}

/// Something that targets may be notified of.
#[derive(Debug, Clone)]
pub struct Occurrence {
    event: NotifyEvent,
    run: RunName,
    step: Option<StepId>,
    remote: Option<RemoteName>,
    /// What distinguishes it from the last one of this event and run, which is not repeated within an hour.
    cause: String,
    message: String,
    is_over: bool,
}

impl Occurrence {
    /// Creates one with the message as its cause.
    pub fn new(event: NotifyEvent, run: &RunName, message: impl Into<String>) -> Self {
        let message = message.into();
        let (step, remote) = (None, None);
        Self { event, run: run.clone(), step, remote, cause: message.clone(), message, is_over: false }
    }

    /// Sets the step.
    #[must_use]
    pub fn step(self, step: StepId) -> Self {
        Self { step: Some(step), ..self }
    }

    /// Sets the remote.
    #[must_use]
    pub fn remote(self, remote: &RemoteName) -> Self {
        Self { remote: Some(remote.clone()), ..self }
    }

    /// Sets the cause, for a message that differs each time.
    #[must_use]
    pub fn cause(self, cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), ..self }
    }

    /// Returns that its cause is over: nobody is notified of that, but at once if it comes again.
    #[must_use]
    pub fn over(self) -> Self {
        Self { is_over: true, ..self }
    }

    /// Returns one for each run that has steps which are not durable on a required remote.
    pub(crate) fn of_steps_left(left: &[NotDurable]) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let required: Vec<&NotDurable> = left.iter().filter(|step| step.required).collect();
        for step in &required {
            if found.iter().any(|one| one.run == step.run) {
                continue;
            }
            let its = || required.iter().filter(|other| other.run == step.run);
            let last = its().max_by_key(|step| step.id).unwrap_or(step);
            let more = match its().count() {
                1 => String::new(),
                count => format!("; {} in all", words::count(count as u64, "step on a remote")),
            };
            let message = format!(
                "the agent ended before {} was durable on {}: {}{more}",
                last.id, last.remote, last.reason
            );
            let cause = format!("ended {} {}", last.id, last.remote);
            found.push(
                Self::new(NotifyEvent::NotDurable, &step.run, message)
                    .step(last.id)
                    .remote(&last.remote)
                    .cause(cause),
            );
        }
        found
    }

    fn notification(&self, node: &NodeName) -> Notification {
        let message = self.message.split_whitespace().collect::<Vec<_>>().join(" ");
        Notification {
            event: self.event,
            run: Some(self.run.clone()),
            step: self.step.map(|id| id.step),
            attempt: self.step.map(|id| id.attempt),
            remote: self.remote.clone(),
            node: node.clone(),
            time: clock::now().to_rfc3339(),
            message: message.chars().filter(|letter| !letter.is_control()).take(MAX_MESSAGE).collect(),
        }
    }
}

/// Notifies targets, in tasks of its own. Dropping it ends them.
#[derive(Debug)]
pub struct Notifier {
    /// `None` without targets.
    queue: Option<mpsc::Sender<Occurrence>>,
    observer: Arc<dyn Observer>,
    closing: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl Notifier {
    /// Starts the tasks; none without targets. `vault` remembers what was sent, for the next processes of this node.
    pub fn start(
        targets: &[NotifyTarget],
        node: NodeName,
        vault: Option<Vault>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let (closing, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let queue = (!targets.is_empty()).then(|| {
            let (queue, occurrences) = mpsc::channel(QUEUE);
            let mut queues = Vec::with_capacity(targets.len());
            for target in targets {
                let (target_queue, notifications) = mpsc::channel(QUEUE);
                queues.push((target.on.clone(), target_queue));
                tasks.spawn(deliver(target.sink.clone(), notifications, Arc::clone(&observer)));
            }
            let distributor = Distributor { node, queues, repeats: Repeats::new(vault) };
            tasks.spawn(distributor.work(occurrences, closing.clone()));
            queue
        });
        Self { queue, observer, closing, tasks: Mutex::new(tasks) }
    }

    /// Notifies the targets, unless the same was sent lately. Does not wait.
    pub fn notify(&self, occurrence: Occurrence) {
        if let Some(queue) = &self.queue
            && let Err(error) = queue.try_send(occurrence)
        {
            tracing::warn!(%error, "dropped a notification, because too many wait");
        }
    }

    /// Waits until everything is delivered, until the deadline at most, and ends the tasks.
    pub async fn finish(&self, deadline: Instant) {
        self.closing.cancel();
        let mut tasks = self.tasks.lock().await;
        let ended = async { while tasks.join_next().await.is_some() {} };
        if timeout_at(deadline, ended).await.is_err() {
            self.observer.warn("not every notification was delivered: no time was left");
        }
        tasks.abort_all();
    }
}

/// Sends each occurrence to the targets that want it.
struct Distributor {
    node: NodeName,
    queues: Vec<(Vec<NotifyEvent>, mpsc::Sender<Notification>)>,
    repeats: Repeats,
}

impl Distributor {
    async fn work(mut self, mut occurrences: mpsc::Receiver<Occurrence>, closing: CancellationToken) {
        loop {
            let occurrence = tokio::select! {
                biased;
                occurrence = occurrences.recv() => occurrence,
                () = closing.cancelled() => return,
            };
            let Some(occurrence) = occurrence else { return };
            let (event, run) = (occurrence.event, &occurrence.run);
            if occurrence.is_over {
                self.repeats.forget(event, run, &occurrence.cause).await;
                continue;
            }
            if !self.queues.iter().any(|(on, _)| on.contains(&event))
                || !self.repeats.is_due(event, run, &occurrence.cause).await
            {
                continue;
            }
            let notification = occurrence.notification(&self.node);
            for (_, queue) in self.queues.iter().filter(|(on, _)| on.contains(&event)) {
                if queue.try_send(notification.clone()).is_err() {
                    tracing::warn!("dropped a notification, because too many wait for a target");
                }
            }
        }
    }
}

/// Sends a test notification to a target, once.
///
/// # Errors
/// When it does not accept it.
pub async fn send_test(target: &NotifyTarget, node: NodeName) -> Result<()> {
    let notification = Notification {
        event: NotifyEvent::Test,
        run: None,
        step: None,
        attempt: None,
        remote: None,
        node,
        time: clock::now().to_rfc3339(),
        message: "a test of stepvault doctor: notifications arrive here".to_owned(),
    };
    try_once(&target.sink, &notification).await
}

/// Frames a notification as other documents are.
fn document(notification: &Notification) -> String {
    serde_json::to_string(&Document::new(notification)).unwrap_or_default()
}
