//! The agent's control socket and metrics address.

use std::path::{Path, PathBuf};

use super::super::ControlSocket;
use super::{loaded, only_fault};

#[test]
fn the_socket_is_in_the_vault_elsewhere_or_nowhere() {
    let vault = Some(Path::new("/vault"));
    for (text, kind, path) in [
        ("", ControlSocket::InVault, Some("/vault/agent.sock")),
        ("control-socket = \"off\"", ControlSocket::Off, None),
        ("control-socket = \"/run/a.sock\"", ControlSocket::At("/run/a.sock".into()), Some("/run/a.sock")),
        ("control-socket = \"a.sock\"", ControlSocket::At("/etc/a.sock".into()), Some("/etc/a.sock")),
    ] {
        let config = loaded(&format!("[agent]\n{text}"));
        assert_eq!(config.agent.control_socket, kind, "{text}");
        assert_eq!(config.agent.control_socket.path(vault), path.map(PathBuf::from), "{text}");
    }
    assert_eq!(ControlSocket::InVault.path(None), None);
}

#[test]
fn metrics_are_for_this_machine_alone_unless_they_are_protected() {
    assert_eq!(loaded("").agent.metrics.listen, None);
    for address in ["127.0.0.1:9464", "127.8.8.8:1", "[::1]:9464"] {
        let config = loaded(&format!("[agent]\nmetrics-listen = \"{address}\""));
        assert_eq!(config.agent.metrics.listen.unwrap().to_string(), address);
    }
    for (address, why) in [
        ("0.0.0.0:9464", "other machines could reach it"),
        ("[::]:9464", "other machines could reach it"),
        ("10.0.0.7:9464", "other machines could reach it"),
        ("localhost:9464", "it is not an IP address with a port"),
        ("127.0.0.1", "it is not an IP address with a port"),
        ("9464", "it is not an IP address with a port"),
    ] {
        let (fault, hint) = only_fault(&format!("[agent]\nmetrics-listen = \"{address}\""));
        assert!(
            fault.starts_with("/etc/stepvault.toml:2: agent.metrics-listen: ") && fault.contains(why),
            "{fault}"
        );
        assert!(hint.contains("\"127.0.0.1:9464\""), "{hint}");
    }
    for (protection, token_file) in
        [("metrics-token-file = \"token\"", Some("/etc/token")), ("metrics-without-token = true", None)]
    {
        let config = loaded(&format!("[agent]\nmetrics-listen = \"0.0.0.0:9464\"\n{protection}"));
        assert_eq!(config.agent.metrics.listen.unwrap().to_string(), "0.0.0.0:9464");
        assert_eq!(config.agent.metrics.token_file, token_file.map(PathBuf::from));
    }
    let both = "[agent]\nmetrics-token-file = \"token\"\nmetrics-without-token = true";
    assert!(only_fault(both).0.contains("metrics-token-file is set, too"));
}
