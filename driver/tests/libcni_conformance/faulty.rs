//! Plugins that do not do what the specification wants.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::compare::{Report, settle};
use crate::differences::Group;
use crate::sides::{Order, Reply, Side};
use crate::tools::tool;

/// Long enough for a process to start and answer on a busy machine, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(1500);

const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}"#;

/// How a plugin goes wrong.
enum Fault {
    /// Under its name there is something that cannot be run.
    File(fn(&Side)),
    /// It runs, and does this.
    Reply(Reply),
    /// As before, to be over at [`SHORT`].
    Slow(Reply),
}

struct Case {
    name: &'static str,
    verb: &'static str,
    fault: Fault,
    explained: &'static [&'static str],
}

fn file(name: &'static str, make: fn(&Side), explained: &'static [&'static str]) -> Case {
    Case { name, verb: "ADD", fault: Fault::File(make), explained }
}

fn says(
    name: &'static str,
    exit: i32,
    stdout: impl Into<Vec<u8>>,
    explained: &'static [&'static str],
) -> Case {
    does(name, Reply::new(exit, stdout), explained)
}

fn does(name: &'static str, reply: Reply, explained: &'static [&'static str]) -> Case {
    Case { name, verb: "ADD", fault: Fault::Reply(reply), explained }
}

fn slow(name: &'static str, reply: Reply, explained: &'static [&'static str]) -> Case {
    Case { name, verb: "ADD", fault: Fault::Slow(reply), explained }
}

fn with_mode(side: &Side, text: &str, mode: u32) {
    let path = side.sub("bin/bad");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A good plugin that is open for writing for a while.
fn being_written(side: &Side) {
    let path = side.sub("bin/bad");
    fs::copy(tool("recorder"), &path).unwrap();
    side.reply("bad", "ADD", &Reply::new(0, RESULT));
    let writer = fs::File::options().append(true).open(path).unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(400));
        drop(writer);
    });
}

fn cases() -> Vec<Case> {
    let good = || Reply::new(0, RESULT);
    vec![
        file("missing", |_| {}, &[]),
        file("a directory", |side| fs::create_dir(side.sub("bin/bad")).unwrap(), &[]),
        file("a dangling link", |side| symlink("nowhere", side.sub("bin/bad")).unwrap(), &[]),
        file("a link to itself", |side| symlink("bad", side.sub("bin/bad")).unwrap(), &[]),
        file("not executable", |side| with_mode(side, "#!/bin/sh\n", 0o644), &["not-executable"]),
        file("neither program nor script", |side| with_mode(side, "hello\n", 0o755), &[]),
        file("an empty file", |side| with_mode(side, "", 0o755), &[]),
        file("without its interpreter", |side| with_mode(side, "#!/nonexistent/sh\n", 0o755), &[]),
        file("being written", being_written, &["being-written"]),
        does("killed by SIGKILL", Reply { signal: 9, ..good() }, &["signal-after-output"]),
        does("crashes with SIGSEGV", Reply { signal: 11, ..Reply::default() }, &[]),
        slow("hangs", Reply { sleep_ms: 30_000, ..Reply::default() }, &[]),
        slow("hangs after its result", Reply { sleep_ms: 30_000, ..good() }, &[]),
        slow(
            "hangs and cleans up when asked to end",
            Reply { sleep_ms: 30_000, polite: true, ..good() },
            &["asked-to-end"],
        ),
        slow("hangs and will not end", Reply { sleep_ms: 30_000, stubborn: true, ..good() }, &[]),
        slow("leaves a child with its output", Reply { child_ms: 4000, ..good() }, &["waits-for-children"]),
        slow(
            "hangs, and so does its child",
            Reply { child_ms: 5000, sleep_ms: 30_000, ..good() },
            &["waits-for-children"],
        ),
        does("does not read its input", Reply { deaf: true, ..good() }, &[]),
        does(
            "writes 5 MiB of blanks before its result",
            Reply { stdout: [vec![b' '; 5 << 20], RESULT.into()].concat(), ..good() },
            &["too-much-output"],
        ),
        does("writes 100 MiB", Reply { stdout: vec![b'x'; 1 << 20], times: 100, ..good() }, &[]),
        does("writes 10 MiB to standard error", Reply { stderr: "x".repeat(10 << 20), ..good() }, &[]),
        says("empty", 0, "", &[]),
        says("white space only", 0, " \n\t", &[]),
        says("null", 0, "null", &[]),
        says("a list", 0, "[]", &[]),
        says("a string", 0, "\"ok\"", &[]),
        says("an empty object", 0, "{}", &[]),
        says("half an object", 0, "{\"ips\":[", &[]),
        says("text", 0, "done", &[]),
        says("text after the result", 0, format!("{RESULT} done"), &[]),
        says("two results", 0, format!("{RESULT}{RESULT}"), &[]),
        says("a NUL byte after the result", 0, format!("{RESULT}\0"), &[]),
        says("a byte order mark", 0, format!("\u{feff}{RESULT}"), &[]),
        says("not UTF-8", 0, b"{\"dns\":{\"domain\":\"caf\xe9\"}}".to_vec(), &["not-utf-8"]),
        says("half a surrogate", 0, r#"{"dns":{"domain":"\ud800"}}"#, &["not-utf-8"]),
        says("a NUL in a string", 0, r#"{"dns":{"domain":"\u0000"}}"#, &[]),
        says("an error, and success", 0, r#"{"code":7,"msg":"bad"}"#, &["error-with-success"]),
        says("an error of code 0, and success", 0, r#"{"code":0,"msg":"bad"}"#, &["handed-on-as-written"]),
        says("failure, and nothing", 1, "", &[]),
        says("failure, and garbage", 1, "panic: oh no", &[]),
        says("failure, and a list", 1, "[]", &[]),
        says("failure, and a result", 1, RESULT, &[]),
        says(
            "failure with a result, then an error",
            1,
            format!("{RESULT}{{\"code\":7,\"msg\":\"bad\"}}"),
            &["error-after-result"],
        ),
        says(
            "failure with an error, then garbage",
            2,
            "{\"code\":7,\"msg\":\"bad\"} panic: x",
            &["error-after-result"],
        ),
        does(
            "failure, and an error on standard error only",
            Reply { stderr: "{\"code\":7,\"msg\":\"bad\"}".into(), ..Reply::new(1, "") },
            &[],
        ),
        says("an error without a code", 1, r#"{"msg":"bad"}"#, &[]),
        says("an error without a message", 1, r#"{"code":7}"#, &[]),
        says("an error with unknown members", 1, r#"{"code":7,"msg":"bad","new":{"a":1}}"#, &[]),
        says("an error in another case", 1, r#"{"Code":7,"MSG":"bad"}"#, &["exact-names"]),
        says("an error with a huge code", 1, r#"{"code":18446744073709551615,"msg":"bad"}"#, &[]),
        says(
            "an error with a code beyond 64 bits",
            1,
            r#"{"code":18446744073709551616,"msg":"bad"}"#,
            &["damaged-error"],
        ),
        says("an error with a negative code", 1, r#"{"code":-1,"msg":"bad"}"#, &["damaged-error"]),
        says("an error with a code as a string", 1, r#"{"code":"7","msg":"bad"}"#, &["damaged-error"]),
        says("an error with a list for its message", 1, r#"{"code":7,"msg":["bad"]}"#, &["damaged-error"]),
        says("exit status 255", 255, r#"{"code":7,"msg":"bad"}"#, &[]),
        says(
            "an older version's result",
            0,
            r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}"#,
            &["another-version"],
        ),
        says(
            "the first version's result",
            0,
            r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}"#,
            &["another-version"],
        ),
        says("a newer version's result", 0, r#"{"cniVersion":"1.2.0"}"#, &[]),
        says("a version that is none", 0, r#"{"cniVersion":"newest"}"#, &[]),
        says("a version as a number", 0, r#"{"cniVersion":1}"#, &["malformed-result"]),
        says("an empty version", 0, r#"{"cniVersion":"","ips":[{"address":"10.0.0.2/24"}]}"#, &[]),
        says("unknown members", 0, r#"{"cniVersion":"1.1.0","new":1}"#, &["handed-on-as-written"]),
        says(
            "members in another case",
            0,
            r#"{"cniVersion":"1.1.0","IPs":[{"address":"10.0.0.2/24"}]}"#,
            &["exact-names"],
        ),
        says(
            "a member twice",
            0,
            r#"{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}],"ips":[{"address":"10.0.0.3/24"}]}"#,
            &["malformed-result"],
        ),
        says("addresses as an object", 0, r#"{"ips":{}}"#, &[]),
        says("interfaces as a number", 0, r#"{"interfaces":7}"#, &[]),
        says("an interface that is null", 0, r#"{"interfaces":[null]}"#, &["malformed-result"]),
        says("a hardware address as a number", 0, r#"{"interfaces":[{"name":"x","mac":7}]}"#, &[]),
        says("an MTU as a string", 0, r#"{"interfaces":[{"name":"x","mtu":"1500"}]}"#, &[]),
        says("a negative MTU", 0, r#"{"interfaces":[{"name":"x","mtu":-1}]}"#, &["malformed-result"]),
        says("an address without a prefix", 0, r#"{"ips":[{"address":"10.0.0.2"}]}"#, &[]),
        says("an address that is none", 0, r#"{"ips":[{"address":"10.0.0.256/24"}]}"#, &[]),
        says(
            "an address in IPv6's form of IPv4",
            0,
            r#"{"ips":[{"address":"::ffff:10.0.0.2/120"}]}"#,
            &["handed-on-as-written"],
        ),
        says("a gateway that is none", 0, r#"{"ips":[{"address":"10.0.0.2/24","gateway":"x"}]}"#, &[]),
        says("an address of no interface", 0, r#"{"ips":[{"address":"10.0.0.2/24","interface":7}]}"#, &[]),
        says("an address of interface -1", 0, r#"{"ips":[{"address":"10.0.0.2/24","interface":-1}]}"#, &[]),
        says("a route without a destination", 0, r#"{"routes":[{"gw":"10.0.0.1"}]}"#, &["malformed-result"]),
        says("routes that are null", 0, r#"{"routes":null,"ips":null,"dns":null}"#, &[]),
        says(
            "nested 100 deep",
            0,
            format!(r#"{{"new":{}{}}}"#, "[".repeat(100), "]".repeat(100)),
            &["handed-on-as-written"],
        ),
        Case {
            name: "STATUS with garbage",
            verb: "STATUS",
            fault: Fault::Reply(Reply::new(0, "noise")),
            explained: &[],
        },
        Case {
            name: "STATUS that fails silently",
            verb: "STATUS",
            fault: Fault::Reply(Reply::new(1, "")),
            explained: &[],
        },
        Case {
            name: "STATUS of what is missing",
            verb: "STATUS",
            fault: Fault::File(|_| {}),
            explained: &[],
        },
        Case {
            name: "DEL that hangs",
            verb: "DEL",
            fault: Fault::Slow(Reply { sleep_ms: 30_000, ..Reply::default() }),
            explained: &[],
        },
        Case {
            name: "DEL that is killed",
            verb: "DEL",
            fault: Fault::Reply(Reply { signal: 9, ..Reply::default() }),
            explained: &[],
        },
        Case { name: "DEL of what is missing", verb: "DEL", fault: Fault::File(|_| {}), explained: &[] },
        Case {
            name: "DEL of an unknown container",
            verb: "DEL",
            fault: Fault::Reply(Reply::new(1, r#"{"code":3,"msg":"unknown"}"#)),
            explained: &["unknown-container"],
        },
        Case {
            name: "DEL with an error, and success",
            verb: "DEL",
            fault: Fault::Reply(Reply::new(0, r#"{"code":7,"msg":"bad"}"#)),
            explained: &[],
        },
        Case {
            name: "GC that is killed",
            verb: "GC",
            fault: Fault::Reply(Reply { signal: 9, ..Reply::default() }),
            explained: &[],
        },
        Case { name: "GC of what is missing", verb: "GC", fault: Fault::File(|_| {}), explained: &[] },
    ]
}

fn observe(mut side: Side, case: &Case) -> Value {
    let mut list =
        json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bad"}, {"type": "next"}]});
    let mut timeout = Duration::from_secs(60);
    side.record("next");
    side.reply("next", "ADD", &Reply::new(0, "{}"));
    match &case.fault {
        Fault::File(make) => make(&side),
        Fault::Reply(reply) | Fault::Slow(reply) => {
            side.record("bad");
            side.reply("bad", case.verb, reply);
            if matches!(case.fault, Fault::Slow(_)) {
                timeout = SHORT;
            }
            if reply.deaf {
                // More than a pipe holds.
                list["plugins"][0]["padding"] = "x".repeat(1 << 20).into();
            }
        }
    }
    let began = Instant::now();
    let mut seen = side.run(&Order { timeout, ..Order::new(case.verb, &list) });
    if matches!(case.fault, Fault::Slow(_)) {
        seen["late"] = (began.elapsed() > SHORT + Duration::from_millis(2400)).into();
        seen["asked to end"] = side.sub("terminated").exists().into();
    }
    settle(&mut seen);
    seen
}

#[test]
#[ignore = "needs Go"]
fn faulty_plugins_fail_as_on_libcni() {
    let mut report = Report::new(Group::Faulty);
    let cases = cases();
    // Most of them wait or write: several at once.
    let seen: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let mine: Vec<_> = cases.iter().skip(worker).step_by(4).collect();
                scope.spawn(move || {
                    mine.into_iter()
                        .map(|case| (case, Side::both(|side| observe(side, case))))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    for (case, (ours, libcni)) in seen {
        report.compare(case.name, case.explained, &ours, &libcni);
    }
    report.finish();
}
