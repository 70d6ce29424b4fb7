//! The network of one test: a namespace for the store, one for each node, and a link from each node to the store.
//!
//! Nothing appears in the machine's own network. The namespaces lose their names as soon as they are open here, so
//! the kernel removes them with the last process in them, however the test ends.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The address of the store, as every node sees it.
const STORE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
static NETWORKS: AtomicUsize = AtomicUsize::new(0);

/// How a link breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Packets are lost silently, as behind a dead switch.
    Silent,
    /// The node's own interface is down: nothing can be sent.
    Down,
}

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
}

impl Namespace {
    /// Runs `work` on a thread inside; processes that it starts are inside as well.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }

    fn ip(&self, arguments: &[&str]) {
        self.run(|| ip(arguments)).unwrap();
    }
}

/// The store's namespace, those of the nodes, and their links.
#[derive(Debug)]
pub(crate) struct Network {
    hub: Namespace,
    nodes: Vec<Namespace>,
}

impl Network {
    /// Creates the network.
    ///
    /// # Errors
    /// What keeps this machine or this user from making namespaces.
    pub(crate) fn make(nodes: usize) -> Result<Self, String> {
        let serial = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let mut names = Names(Vec::new());
        let hub = names.add(&format!("sv{}-{serial}-hub", std::process::id()))?;
        ip(&["-n", &names.0[0], "link", "set", "lo", "up"])?;
        let mut made = Vec::new();
        for node in 0..nodes {
            let name = format!("sv{}-{serial}-node-{node}", std::process::id());
            made.push(names.add(&name)?);
            let (hub, link) = (names.0[0].as_str(), link(node));
            let (store, own) = (STORE.to_string(), address(node).to_string());
            ip(&["-n", hub, "link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            ip(&["-n", hub, "addr", "add", &store, "peer", &own, "dev", &link])?;
            ip(&["-n", hub, "link", "set", &link, "up"])?;
            ip(&["-n", &name, "addr", "add", &own, "peer", &store, "dev", "eth0"])?;
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(Self { hub, nodes: made })
    }

    /// Returns a listener that every node reaches.
    pub(crate) fn listen(&self) -> TcpListener {
        self.hub.run(|| TcpListener::bind(SocketAddr::from((STORE, 0)))).unwrap()
    }

    /// A node's namespace.
    pub(crate) fn node(&self, node: usize) -> &Namespace {
        &self.nodes[node]
    }

    /// Returns the node with this address.
    pub(crate) fn node_at(&self, from: IpAddr) -> Option<usize> {
        (0..self.nodes.len()).find(|node| address(*node) == from)
    }

    /// Breaks a node's link.
    pub(crate) fn cut(&self, node: usize, how: Cut) {
        match how {
            Cut::Silent => self.hub.ip(&["link", "set", &link(node), "down"]),
            Cut::Down => self.nodes[node].ip(&["link", "set", "eth0", "down"]),
        }
    }

    /// Mends a node's link.
    pub(crate) fn mend(&self, node: usize) {
        self.hub.ip(&["link", "set", &link(node), "up"]);
        self.nodes[node].ip(&["link", "set", "eth0", "up"]);
    }
}

fn link(node: usize) -> String {
    format!("veth{node}")
}

fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, 10 + u8::try_from(node).unwrap())
}

/// Names that are removed on drop.
struct Names(Vec<String>);

impl Names {
    fn add(&mut self, name: &str) -> Result<Namespace, String> {
        ip(&["netns", "add", name])?;
        self.0.push(name.to_owned());
        let path = format!("/run/netns/{name}");
        let file = File::open(&path).map_err(|error| format!("{path}: {error}"))?;
        Ok(Namespace { file })
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let told = || format!("ip {}", arguments.join(" "));
    let output =
        Command::new("ip").args(arguments).output().map_err(|error| format!("{}: {error}", told()))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", told(), why.trim()))
}
