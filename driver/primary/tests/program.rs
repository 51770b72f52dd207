//! The program as a container runtime runs it, beside a fake agent.

// The lints know tests by their attribute only, not the functions that tests share.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::{Value, json};

const ARGS: &str =
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=d;K8S_POD_NAME=n;K8S_POD_INFRA_CONTAINER_ID=s1;K8S_POD_UID=p1";

/// Runs the program; returns whether it succeeds, and what it prints.
fn run(verb: &str, args: &str, config: &Value) -> (bool, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_netclaim-primary"))
        .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", "s1"), ("CNI_IFNAME", "eth0"), ("CNI_ARGS", args)])
        .env("CNI_NETNS", "/run/netns/n1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(config.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// As the agent writes it, and libcni makes it a plugin's configuration.
fn config(socket: &str) -> Value {
    json!({"cniVersion": "1.1.0", "name": "netclaim-primary", "type": "netclaim-primary", "socket": socket,
        "capabilities": {"portMappings": true}})
}

#[test]
fn the_program_prints_what_the_agent_answers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("primary.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let config = config(socket.to_str().unwrap());
    let result = r#"{"cniVersion":"1.1.0", "interfaces":[ ],"n":1.50}"#;
    let answers = [
        format!(r#"{{"result":{result}}}"#),
        r#"{"error":{"code":7,"msg":"no address is left"}}"#.to_owned(),
        r#"{"result":null}"#.to_owned(),
    ];
    let agent = thread::spawn(move || {
        let serve = |answer: &String| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
            question
        };
        answers.iter().map(serve).collect::<Vec<_>>()
    });
    assert_eq!(run("ADD", ARGS, &config), (true, format!("{result}\n")));
    let (is_added, error) = run("ADD", ARGS, &config);
    let error: Value = serde_json::from_str(&error).unwrap();
    let expected = json!({"cniVersion": "1.1.0", "code": 7, "msg": "no address is left"});
    assert_eq!((is_added, error), (false, expected));
    assert_eq!(run("DEL", ARGS, &config), (true, String::new()));
    let netns = "\"netns\":\"/run/netns/n1\",";
    assert_eq!(
        agent.join().unwrap(),
        [("ADD", netns), ("ADD", netns), ("DEL", "")].map(|(verb, netns)| format!(
            "{{\"command\":\"{verb}\",\"sandbox\":\"s1\",{netns}\"pod\":\"p1\"}}\n"
        ))
    );
}

#[test]
fn what_needs_no_agent_asks_none() {
    // The socket is missing: a question would take seconds.
    let config = config("/nonexistent/primary.sock");
    for (verb, args) in [("STATUS", ARGS), ("GC", ARGS), ("DEL", ""), ("DEL", "IgnoreUnknown=1")] {
        assert_eq!(run(verb, args, &config), (true, String::new()), "{verb}");
    }
    let (is_added, error) = run("ADD", "", &config);
    assert!(!is_added && error.contains("CNI_ARGS: has no K8S_POD_UID"), "{error}");
    let (_, versions) = run("VERSION", "", &config);
    assert!(versions.contains("1.1.0"), "{versions}");
    let (is_known, error) = run("STATUS", "", &json!({"cniVersion": "1.1.0", "name": "n", "sockets": "/x"}));
    assert!(!is_known && error.contains("unknown key"), "{error}");
}
