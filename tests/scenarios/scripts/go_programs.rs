//! `tests/programs/build.sh`, where the modules of a program cannot be had.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Command;

/// Has a program built by a Go proxy that gives this answer to everything; returns the script's status.
fn build_by(program: &str, answer: &'static str) -> Option<i32> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{},direct", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let _ = lines.take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty())).count();
            let _ = write!(stream, "HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut build = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/programs/build.sh"));
    build.arg(program).env("GOPROXY", proxy).env("GOSUMDB", "off").env("GOVCS", "*:off");
    build.env("NETCLAIM_CACHE", dir.path()).env("GOMODCACHE", dir.path().join("modules"));
    build.output().unwrap().status.code()
}

#[test]
#[ignore = "needs Go"]
fn a_program_whose_modules_the_proxy_does_not_have_is_told_by_the_status() {
    assert_eq!(build_by("crictl", "404 Not Found"), Some(3));
    assert_eq!(build_by("crictl", "410 Gone"), Some(3));
}

#[test]
#[ignore = "needs Go"]
fn a_program_whose_go_the_proxy_does_not_have_is_told_by_the_status() {
    assert_eq!(build_by("karpenter", "404 Not Found"), Some(3));
}

#[test]
#[ignore = "needs Go"]
fn a_proxy_that_does_not_answer_is_a_failure() {
    assert_eq!(build_by("crictl", "503 Service Unavailable"), Some(1));
}
