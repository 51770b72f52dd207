//! The way to the cluster through a proxy, which kubectl takes too. The proxy is a fake that refuses
//! everything.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

/// Returns the first line that the proxy gets if the kubeconfig has this server, and `PROXY` in it and in
/// variables is the proxy.
fn first_line(server: &str, own: Option<&str>, variables: &[(&str, &str)]) -> String {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap().to_string();
    let server = server.replace("PROXY", &address);
    let own =
        own.map(|url| format!(", proxy-url: \"{}\"", url.replace("PROXY", &address))).unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: \"{server}\"{own}}}}}],\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let recorded = thread::spawn(move || {
        let (mut stream, _) = proxy.accept().unwrap();
        // The request of CONNECT, or the beginning of TLS, comes in one piece.
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
        String::from_utf8_lossy(&piece[..count]).lines().next().unwrap_or_default().to_owned()
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_netclaimctl"));
    command.env_clear().args(["explain", "claim", "web", "--kubeconfig"]).arg(&kubeconfig);
    command.envs(variables.iter().map(|(name, value)| (*name, value.replace("PROXY", &address))));
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(1), "the proxy refuses");
    recorded.join().unwrap()
}

#[test]
fn a_cluster_is_reached_through_the_proxy_of_the_environment() {
    let line = first_line("https://cluster.example:6443", None, &[("HTTPS_PROXY", "http://PROXY")]);
    assert_eq!(line, "CONNECT cluster.example:6443 HTTP/1.1");
    let line = first_line(
        "https://cluster.example",
        None,
        &[("https_proxy", "PROXY"), ("no_proxy", "127.0.0.1,.other")],
    );
    assert_eq!(line, "CONNECT cluster.example:443 HTTP/1.1");
}

#[test]
fn the_proxy_of_a_kubeconfig_is_used_whatever_the_environment_says() {
    let variables = [("HTTPS_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "*")];
    let line = first_line("https://127.0.0.1:1", Some("http://PROXY"), &variables);
    assert_eq!(line, "CONNECT 127.0.0.1:1 HTTP/1.1");
}

#[test]
fn a_host_of_no_proxy_is_reached_without_the_proxy() {
    // The listener stands for the cluster: it gets the beginning of TLS, as the proxy is another.
    let line = first_line(
        "https://PROXY",
        None,
        &[("HTTPS_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "127.0.0.0/8")],
    );
    assert!(!line.starts_with("CONNECT"), "{line}");
}
