//! A machine whose processes can be stopped, frozen and disconnected from the network.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

#[derive(Debug, Default)]
struct State {
    frozen: bool,
    cut_off: bool,
    /// The number of power cuts.
    power_cuts: u64,
    waiting: Vec<Waker>,
    running: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub struct Machine {
    pub name: String,
    /// The offset of its clock.
    pub clock_off_seconds: Mutex<i64>,
    state: Mutex<State>,
    thawed: Notify,
}

impl Machine {
    pub fn new(name: &str, clock_off_seconds: i64) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            clock_off_seconds: Mutex::new(clock_off_seconds),
            state: Mutex::default(),
            thawed: Notify::new(),
        })
    }

    /// Starts a process.
    pub fn run(self: &Arc<Self>, work: impl Future<Output = ()> + 'static) {
        let process = Process { machine: Arc::clone(self), work: Box::pin(work) };
        let mut state = self.state.lock().unwrap();
        state.running.retain(|running| !running.is_finished());
        state.running.push(tokio::task::spawn_local(process));
    }

    /// Ends every process at once, as a power cut does.
    pub async fn cut_power(&self) {
        let ended = {
            let mut state = self.state.lock().unwrap();
            state.power_cuts += 1;
            std::mem::take(&mut state.running)
        };
        for process in &ended {
            process.abort();
        }
        for process in ended {
            if let Err(error) = process.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }

    /// Returns how often its power was cut.
    pub fn power_cuts(&self) -> u64 {
        self.state.lock().unwrap().power_cuts
    }

    /// Stops all processes, as SIGSTOP does; requests already on the network continue.
    pub fn freeze(&self) {
        self.state.lock().unwrap().frozen = true;
    }

    pub fn thaw(&self) {
        let waiting = {
            let mut state = self.state.lock().unwrap();
            state.frozen = false;
            std::mem::take(&mut state.waiting)
        };
        self.thawed.notify_waiters();
        for waker in waiting {
            waker.wake();
        }
    }

    /// Disconnects it from the network, or connects it again.
    pub fn cut_off(&self, cut_off: bool) {
        self.state.lock().unwrap().cut_off = cut_off;
    }

    pub fn is_cut_off(&self) -> bool {
        self.state.lock().unwrap().cut_off
    }

    /// Waits until it is not frozen.
    pub async fn awake(&self) {
        loop {
            let mut thawed = std::pin::pin!(self.thawed.notified());
            thawed.as_mut().enable();
            if !self.state.lock().unwrap().frozen {
                return;
            }
            thawed.await;
        }
    }

    /// Propagates the panic of a process.
    pub async fn raise_panics(&self) {
        let ended: Vec<JoinHandle<()>> = {
            let mut state = self.state.lock().unwrap();
            let (ended, running) =
                std::mem::take(&mut state.running).into_iter().partition(JoinHandle::is_finished);
            state.running = running;
            ended
        };
        for process in ended {
            if let Err(error) = process.await
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

/// A process is not polled while its machine is frozen. The link holds the tasks that the engine starts beside it:
/// each stops at its next request, and before the response to its last.
struct Process {
    machine: Arc<Machine>,
    work: Pin<Box<dyn Future<Output = ()>>>,
}

impl Future for Process {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.machine.state.lock().unwrap();
            if state.frozen {
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            }
        }
        self.work.as_mut().poll(context)
    }
}
