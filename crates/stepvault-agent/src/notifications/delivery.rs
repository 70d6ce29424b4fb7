//! Delivers notifications to one target.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use stepvault_core::config::{NotifySink, WebhookFormat};
use stepvault_core::{Error, ErrorKind, Observer, Result};
use stepvault_engine::blocking::blocking;
use stepvault_remote::outbound::Outbound;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Notification, document};
use crate::pause::Pause;

/// Number of tries of a delivery.
const TRIES: u32 = 5;
/// Maximum pause between two tries, also if the server asks for more.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How long a command may run.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);
/// Interval at which it is looked whether a command has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Delivers one notification after the other until there are no more.
pub(super) async fn deliver(
    sink: NotifySink,
    mut notifications: mpsc::Receiver<Notification>,
    observer: Arc<dyn Observer>,
) {
    while let Some(notification) = notifications.recv().await {
        if let Err(error) = try_often(&sink, &notification).await {
            let run = notification.run.as_ref().map(ToString::to_string).unwrap_or_default();
            let event = notification.event;
            observer.warn(format!("{run}: nobody was notified of '{event}': {}", error.text_with_hint()));
        }
    }
}

async fn try_often(sink: &NotifySink, notification: &Notification) -> Result<()> {
    let mut pause = Pause::default();
    loop {
        let error = match try_once(sink, notification).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let asked_for = error.retry_after_wait().map(|wait| wait.min(LONGEST_PAUSE));
        pause.failed(LONGEST_PAUSE, asked_for);
        if !error.is_transient() || pause.failures >= TRIES {
            return Err(error);
        }
        tracing::debug!(%error, "trying to notify again");
        pause.wait().await;
    }
}

/// Tries to deliver a notification once.
pub(super) async fn try_once(sink: &NotifySink, notification: &Notification) -> Result<()> {
    match sink {
        NotifySink::Webhook { url, format } => {
            let outbound = Outbound {
                what: "cannot send a notification",
                hint: "check the target's url and format, and whether the webhook still exists",
                ..Outbound::to(url.clone())
            };
            outbound.send(body(*format, notification)).await
        }
        NotifySink::Command(words) => run(words.clone(), document(notification)).await,
    }
}

/// Returns what a webhook receives.
fn body(format: WebhookFormat, notification: &Notification) -> String {
    let Notification { event, run, node, message, .. } = notification;
    let run = run.as_ref().map_or_else(String::new, |run| format!(" {run}"));
    let text = format!("stepvault{run} on {node}: {event}: {message}");
    match format {
        WebhookFormat::Json => document(notification),
        // Else Slack takes `<!channel>` for a mention of everybody.
        WebhookFormat::Slack => {
            json!({ "text": text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;") })
                .to_string()
        }
        WebhookFormat::Discord => json!({ "content": text, "allowed_mentions": { "parse": [] } }).to_string(),
    }
}

/// Runs a command with the document on its standard input, and ends it with all that it has started when it takes too
/// long or this is dropped.
async fn run(words: Vec<String>, document: String) -> Result<()> {
    let cancelled = CancellationToken::new();
    let _guard = cancelled.clone().drop_guard();
    blocking(move || {
        let (program, arguments) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
        let fault = |kind| Error::new(kind, "cannot notify by a command").on(program);
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|error| {
            fault(ErrorKind::Usage).caused_by(error).hint("give the program's path unless it is in PATH")
        })?;
        // A document is smaller than a pipe's buffer. A command that does not read it tells by its exit code.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(document.as_bytes()));
        let ended =
            wait(&mut child, &cancelled).map_err(|error| fault(ErrorKind::Failed).caused_by(error))?;
        match ended {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(fault(ErrorKind::Unreachable).because(status)),
            None => {
                let why = format!("it ran for more than {} s and was killed", COMMAND_LIMIT.as_secs());
                Err(fault(ErrorKind::Unreachable).because(why))
            }
        }
    })
    .await
}

/// Waits for the command's end; kills it and returns `None` if it takes too long.
fn wait(child: &mut Child, cancelled: &CancellationToken) -> std::io::Result<Option<ExitStatus>> {
    let looks = COMMAND_LIMIT.as_millis() / LOOK_INTERVAL.as_millis();
    for _ in 0..looks {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if cancelled.is_cancelled() {
            break;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    // It may have ended meanwhile.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    child.wait()?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use stepvault_core::config::NotifyEvent;

    use super::*;

    #[test]
    fn nobody_is_mentioned_by_a_message() {
        let notification = Notification {
            event: NotifyEvent::NotDurable,
            run: Some("demo/a".parse().unwrap()),
            step: None,
            attempt: None,
            remote: None,
            node: "node-0".parse().unwrap(),
            time: String::new(),
            message: "<!channel> @everyone & \"x\"".to_owned(),
        };
        assert_eq!(
            body(WebhookFormat::Slack, &notification),
            r#"{"text":"stepvault demo/a on node-0: not-durable: &lt;!channel&gt; @everyone &amp; \"x\""}"#
        );
        let discord: serde_json::Value =
            serde_json::from_str(&body(WebhookFormat::Discord, &notification)).unwrap();
        assert_eq!(discord["allowed_mentions"], json!({ "parse": [] }));
        assert!(discord["content"].as_str().unwrap().ends_with("<!channel> @everyone & \"x\""));
    }
}
