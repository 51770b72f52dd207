//! The command line beside cnitool's. Each runs on a host of its own, with a `/var/lib/cni` of its own.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::compare::{Report, settle, settle_names};
use crate::differences::Group;
use crate::hosts::{Pods, files, links};
use crate::tools::{build_all, tool};

const CACHE: &str = "/var/lib/cni";
const RESULT: &str = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],"ips":[{"address":"10.0.0.9/24","interface":0}]}"#;

#[derive(Clone, Copy, PartialEq)]
enum Program {
    Ours,
    Cnitool,
}

enum Step {
    /// A command line. `<root>` stands for the side's directory.
    Run(&'static str),
    /// The same by the other program.
    RunOther(&'static str),
    /// A configuration file.
    Configure(&'static str, Value),
    /// What the plugin answers to a verb: exit status and output.
    Answer(&'static str, &'static str, i32, &'static str),
    /// The pod's namespace is gone.
    End(&'static str),
}

struct Case {
    name: &'static str,
    env: Vec<(&'static str, &'static str)>,
    steps: Vec<Step>,
    explained: &'static [&'static str],
}

/// A call as the recorder notes it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Call {
    plugin: String,
    env: BTreeMap<String, String>,
    input: String,
}

struct Host {
    root: PathBuf,
    pods: Pods,
    program: Program,
}

impl Host {
    /// Moves the calling thread to a host of its own.
    ///
    /// `root` is empty, and another directory on each host: container IDs are made from paths.
    fn new(program: Program, root: PathBuf) -> Self {
        build_all();
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET).expect("needs root");
        fs::create_dir_all(CACHE).unwrap();
        let (none, no_data) = (None::<&Path>, None::<&str>);
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, no_data).unwrap();
        for dir in [Path::new(CACHE), &root] {
            mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), no_data).unwrap();
        }
        for dir in ["bin", "more", "calls", "replies", "real", "netns", "ipam", "net.d"] {
            fs::create_dir(root.join(dir)).unwrap();
        }
        for plugin in ["alpha", "beta", "noop"] {
            symlink(tool("recorder"), root.join("bin").join(plugin)).unwrap();
        }
        symlink(tool("recorder"), root.join("more/gamma")).unwrap();
        symlink(tool("noop"), root.join("real/noop")).unwrap();
        for real in std::env::var_os("NETCLAIM_CNI_BIN")
            .map(PathBuf::from)
            .iter()
            .flat_map(|dir| fs::read_dir(dir).unwrap())
        {
            let real = real.unwrap().path();
            let name = real.file_name().unwrap();
            symlink(tool("recorder"), root.join("bin").join(name)).unwrap();
            symlink(&real, root.join("real").join(name)).unwrap();
        }
        let mut pods = Pods::new(root.join("netns"));
        for pod in ["a", "b"] {
            pods.path(pod);
        }
        let host = Self { root, pods, program };
        for plugin in ["alpha", "beta", "gamma"] {
            host.answer(plugin, "ADD", 0, RESULT);
        }
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn answer(&self, plugin: &str, verb: &str, exit: i32, stdout: &str) {
        let reply = json!({"Exit": exit, "Stdout": STANDARD.encode(stdout)});
        fs::write(self.path("replies").join(format!("{plugin}.{verb}")), reply.to_string()).unwrap();
    }

    fn run(&self, program: Program, line: &str, env: &[(&str, &str)]) -> Value {
        let root = self.root.to_str().unwrap();
        let mut command = match program {
            Program::Ours => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_netclaimctl"));
                command.arg("cni");
                command
            }
            Program::Cnitool => Command::new(tool("cnitool")),
        };
        command
            .args(line.split_whitespace().map(|word| word.replace("<root>", root)))
            .current_dir(self.path("netns"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("NETCLAIM_CNI_CACHE", CACHE)
            .env("CNI_PATH", format!("{root}/bin:{root}/more"))
            .env("NETCONFPATH", self.path("net.d"));
        for (key, value) in env {
            command.env(key, value.replace("<root>", root));
        }
        let output = command.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let mut seen = json!({
            "exit": output.status.code(),
            "result": serde_json::from_str(&stdout).unwrap_or_else(|_| Value::from(stdout.trim())),
            "calls": self.calls(),
            "cache": cache(),
            "then": {"host": links("show"), "pods": self.pods.show(), "files": files(&self.path("ipam"))},
        });
        seen = serde_json::from_str(&seen.to_string().replace(root, "<root>")).unwrap();
        settle(&mut seen);
        seen
    }

    fn calls(&self) -> Value {
        let mut paths: Vec<_> =
            fs::read_dir(self.path("calls")).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let calls = paths.iter().map(|path| {
            let Call { plugin, mut env, input } = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            fs::remove_file(path).unwrap();
            env.retain(|key, _| key.starts_with("CNI_"));
            let stdin: Value = serde_json::from_slice(&STANDARD.decode(input).unwrap()).unwrap();
            json!({"plugin": plugin, "env": env, "stdin": stdin})
        });
        calls.collect()
    }

    fn observe(mut self, case: &Case) -> Value {
        let other = if self.program == Program::Ours { Program::Cnitool } else { Program::Ours };
        let mut seen = Vec::new();
        for step in &case.steps {
            match step {
                Step::Run(line) => seen.push(self.run(self.program, line, &case.env)),
                Step::RunOther(line) => seen.push(self.run(other, line, &case.env)),
                Step::Configure(file, network) => {
                    let text = network.to_string().replace("<root>", self.root.to_str().unwrap());
                    fs::write(self.path("net.d").join(file), text).unwrap();
                }
                Step::Answer(plugin, verb, exit, stdout) => self.answer(plugin, verb, *exit, stdout),
                Step::End(pod) => self.pods.end(pod),
            }
        }
        settle_names(&seen.into())
    }
}

/// The files of the cache; locks are ours alone.
fn cache() -> Value {
    let mut found = Map::new();
    for entry in fs::read_dir(Path::new(CACHE).join("results")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let mut entry: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let config = STANDARD.decode(entry["config"].as_str().unwrap()).unwrap();
        entry["config"] = serde_json::from_slice(&config).unwrap();
        found.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), entry);
    }
    found.into()
}

/// Ours always sends `IgnoreUnknown=1` first; a case of its own shows that.
fn without_ignore_unknown(seen: &mut Value) {
    for step in seen.as_array_mut().unwrap() {
        for call in step["calls"].as_array_mut().unwrap() {
            if let Some(args) =
                call["env"]["CNI_ARGS"].as_str().and_then(|args| args.strip_prefix("IgnoreUnknown=1"))
            {
                call["env"]["CNI_ARGS"] = args.trim_start_matches(';').into();
            }
        }
        for (_, entry) in step["cache"].as_object_mut().unwrap() {
            if let Some(args) = entry["cniArgs"].as_array_mut() {
                args.retain(|pair| pair[0] != "IgnoreUnknown");
                if args.is_empty() {
                    entry["cniArgs"] = Value::Null;
                }
            }
        }
    }
}

fn network(plugins: Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
}

fn cases() -> Vec<Case> {
    use Step::{Answer, Configure, End, Run, RunOther};
    let alpha = || {
        Configure(
            "10.conflist",
            network(json!([{"type": "alpha", "capabilities": {"mac": true, "ips": true}}, {"type": "beta"}])),
        )
    };
    let case = |name, steps: Vec<Step>| Case { name, env: Vec::new(), steps, explained: &[] };
    let life = |first: Step| {
        vec![
            first,
            Run("status net a"),
            Run("add net a"),
            Run("check net a"),
            Run("del net a"),
            Run("del net a"),
        ]
    };
    let fails = |name, steps: Vec<Step>| Case { explained: &["error-object"], ..case(name, steps) };
    let local = || json!({"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "10.2.0.0/24"}]], "dataDir": "<root>/ipam"});
    let real = |plugins: Value| Configure("10.conflist", network(plugins));
    vec![
        case("a life", life(alpha())),
        Case { env: vec![("CNI_ARGS", "A=1;K8S_POD_NAME=p")], ..case("arguments", life(alpha())) },
        Case {
            env: vec![("CNI_ARGS", "IgnoreUnknown=1;A=1")],
            ..case("arguments with IgnoreUnknown", life(alpha()))
        },
        Case { env: vec![("CNI_ARGS", "")], ..case("empty arguments", life(alpha())) },
        Case {
            env: vec![(
                "CAP_ARGS",
                r#"{"mac":"02:00:00:00:00:01","ips":["10.0.0.9/24"],"x":{"y":[1,null]}}"#,
            )],
            ..case("capability arguments", life(alpha()))
        },
        Case { env: vec![("CAP_ARGS", "{}")], ..case("no capability arguments", life(alpha())) },
        Case { env: vec![("CAP_ARGS", "null")], ..case("capability arguments that are null", life(alpha())) },
        Case { env: vec![("CNI_IFNAME", "net7")], ..case("an interface name", life(alpha())) },
        case(
            "a path with dots",
            vec![alpha(), Run("add net ./../netns//a"), Run("check net <root>/netns/a"), Run("del net a")],
        ),
        Case {
            explained: &["namespace-gone"],
            ..case("a namespace that is gone", vec![alpha(), Run("add net a"), End("a"), Run("del net a")])
        },
        case(
            "a second directory in CNI_PATH",
            life(Configure("10.conflist", network(json!([{"type": "gamma"}])))),
        ),
        case(
            "a single plugin's file",
            life(Configure("10.conf", json!({"cniVersion": "1.1.0", "name": "net", "type": "alpha"}))),
        ),
        case(
            "a version without CHECK",
            vec![
                Configure(
                    "10.conflist",
                    json!({"cniVersion": "0.3.1", "name": "net", "plugins": [{"type": "beta"}]}),
                ),
                Answer(
                    "beta",
                    "ADD",
                    0,
                    r#"{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.9/24"}]}"#,
                ),
                Run("status net a"),
                Run("add net a"),
                Run("del net a"),
            ],
        ),
        case(
            "disableCheck",
            life(Configure(
                "10.conflist",
                json!({"cniVersion": "1.1.0", "name": "net", "disableCheck": true, "plugins": [{"type": "alpha"}]}),
            )),
        ),
        case(
            "noop",
            vec![
                Configure("noop.told", json!({"ReportResult": RESULT})),
                Configure(
                    "10.conflist",
                    network(json!([{"type": "noop", "debugFile": "<root>/net.d/noop.told"}])),
                ),
                Run("status net a"),
                Run("add net a"),
                Run("check net a"),
                Run("del net a"),
            ],
        ),
        fails(
            "noop that fails",
            vec![
                Configure("noop.told", json!({"ReportError": "told to fail", "ReportErrorCode": 123})),
                Configure(
                    "10.conflist",
                    network(json!([{"type": "noop", "debugFile": "<root>/net.d/noop.told"}])),
                ),
                Run("status net a"),
                Run("del net a"),
            ],
        ),
        case(
            "two interfaces of one pod and two pods",
            vec![
                alpha(),
                Run("add net a"),
                Run("add net b"),
                Run("check net a"),
                Run("del net a"),
                Run("check net b"),
                Run("del net b"),
            ],
        ),
        case("DEL of what is not attached", vec![alpha(), Run("del net a")]),
        // Failures.
        fails(
            "STATUS 50",
            vec![
                alpha(),
                Answer("alpha", "STATUS", 1, r#"{"code":50,"msg":"not now"}"#),
                Run("status net a"),
            ],
        ),
        fails(
            "an ADD that fails first",
            vec![
                Configure("10.conflist", network(json!([{"type": "missing"}]))),
                Run("add net a"),
                Run("del net a"),
            ],
        ),
        fails(
            "a CHECK that fails",
            vec![
                alpha(),
                Run("add net a"),
                Answer("beta", "CHECK", 1, r#"{"code":100,"msg":"gone"}"#),
                Run("check net a"),
            ],
        ),
        fails(
            "a DEL that fails",
            vec![
                alpha(),
                Run("add net a"),
                Answer("alpha", "DEL", 1, r#"{"code":100,"msg":"busy"}"#),
                Run("del net a"),
                Answer("alpha", "DEL", 0, ""),
                Run("del net a"),
            ],
        ),
        fails(
            "a CHECK that does not exist",
            vec![
                Configure(
                    "10.conflist",
                    json!({"cniVersion": "0.3.1", "name": "net", "plugins": [{"type": "beta"}]}),
                ),
                Answer("beta", "ADD", 0, r#"{"cniVersion":"0.3.1"}"#),
                Run("add net a"),
                Run("check net a"),
            ],
        ),
        fails(
            "a network that is not there",
            vec![
                alpha(),
                Run("add other a"),
                Run("status other a"),
                Run("del other a"),
                Run("check other a"),
            ],
        ),
        fails("no networks", vec![Run("add net a"), Run("del net a")]),
        Case {
            env: vec![("CNI_ARGS", "A")],
            ..fails("arguments without a value", vec![alpha(), Run("add net a")])
        },
        Case {
            env: vec![("CNI_ARGS", "A=1=2")],
            ..fails("arguments with two equals signs", vec![alpha(), Run("add net a")])
        },
        Case {
            env: vec![("CAP_ARGS", "[]")],
            ..fails("capability arguments as a list", vec![alpha(), Run("add net a")])
        },
        Case {
            env: vec![("CAP_ARGS", "{")],
            ..fails("capability arguments that are not JSON", vec![alpha(), Run("add net a")])
        },
        Case {
            env: vec![("CNI_IFNAME", "")],
            ..fails("an empty interface name", vec![alpha(), Run("add net a")])
        },
        Case {
            env: vec![("CNI_IFNAME", "a/b")],
            ..fails("an interface name with a slash", vec![alpha(), Run("add net a")])
        },
        // Wanted differences.
        Case {
            explained: &["second-add"],
            ..case("a second ADD", vec![alpha(), Run("add net a"), Run("add net a"), Run("del net a")])
        },
        Case {
            explained: &["failed-add", "error-object"],
            ..case(
                "an ADD that fails in its chain",
                vec![
                    alpha(),
                    Answer("beta", "ADD", 1, r#"{"code":7,"msg":"bad"}"#),
                    Run("add net a"),
                    Run("del net a"),
                ],
            )
        },
        Case {
            explained: &["past-what-made-nothing", "failed-add", "error-object"],
            ..case(
                "a DEL that fails where the ADD made nothing",
                vec![
                    alpha(),
                    Answer("beta", "ADD", 1, r#"{"code":50,"msg":"away","effectState":"none"}"#),
                    Answer("beta", "DEL", 1, r#"{"code":11,"msg":"away"}"#),
                    Run("add net a"),
                    Run("del net a"),
                ],
            )
        },
        Case {
            explained: &["past-what-made-nothing", "namespace-gone", "failed-add", "error-object"],
            ..case(
                "a DEL that fails where the ADD made something in a namespace that is gone",
                vec![
                    alpha(),
                    Answer("beta", "ADD", 1, r#"{"code":50,"msg":"away","effectState":"container"}"#),
                    Answer("beta", "DEL", 1, r#"{"code":11,"msg":"away"}"#),
                    Run("add net a"),
                    End("a"),
                    Run("del net a"),
                ],
            )
        },
        Case {
            explained: &["namespace-gone", "error-object"],
            ..case(
                "a DEL that fails in its chain when the namespace is gone",
                vec![
                    alpha(),
                    Run("add net a"),
                    End("a"),
                    Answer("beta", "DEL", 1, r#"{"code":11,"msg":"away"}"#),
                    Run("del net a"),
                    Answer("beta", "DEL", 0, ""),
                    Run("del net a"),
                ],
            )
        },
        Case {
            explained: &["remembered-network"],
            ..case(
                "another configuration meanwhile",
                vec![
                    alpha(),
                    Run("add net a"),
                    Configure("10.conflist", network(json!([{"type": "beta", "n": 2}]))),
                    Run("check net a"),
                    Run("del net a"),
                ],
            )
        },
        Case {
            explained: &["live-attachments"],
            ..case(
                "GC of a pod that lives",
                vec![alpha(), Run("add net a"), Run("gc net a"), Run("del net a")],
            )
        },
        Case {
            explained: &["check-of-nothing"],
            ..case("CHECK of what is not attached", vec![alpha(), Run("check net a")])
        },
        Case { explained: &["command-line"], ..case("too few words", vec![alpha(), Run("add net")]) },
        // Files of each other.
        case(
            "CHECK and DEL by the other",
            vec![alpha(), Run("add net a"), RunOther("check net a"), RunOther("del net a")],
        ),
        Case {
            env: vec![("CNI_ARGS", "A=1"), ("CAP_ARGS", r#"{"mac":"02:00:00:00:00:01"}"#)],
            ..case(
                "CHECK and DEL by the other, with arguments",
                vec![
                    alpha(),
                    Run("add net a"),
                    RunOther("check net a"),
                    Run("check net a"),
                    RunOther("del net a"),
                ],
            )
        },
        // The reference plugins.
        case(
            "bridge",
            life(real(json!([{"type": "bridge", "bridge": "br0", "hairpinMode": true, "ipam": local()}]))),
        ),
        case(
            "bridge and tuning",
            life(real(
                json!([{"type": "bridge", "bridge": "br0", "ipam": local()}, {"type": "tuning", "mtu": 1400, "dataDir": "<root>/ipam"}]),
            )),
        ),
        Case {
            env: vec![("CAP_ARGS", r#"{"mac":"02:00:00:00:00:42"}"#), ("CNI_IFNAME", "data0")],
            ..case(
                "bridge with a hardware address",
                life(real(
                    json!([{"type": "bridge", "bridge": "br0", "capabilities": {"mac": true}, "ipam": local()}]),
                )),
            )
        },
        Case {
            env: vec![("CNI_ARGS", "IgnoreUnknown=1;IP=10.1.0.77")],
            ..case(
                "bridge with an address",
                life(real(json!([{"type": "bridge", "bridge": "br0", "ipam": local()}]))),
            )
        },
        fails(
            "ptp, tuning and sbr, which cannot be checked",
            life(real(
                json!([{"type": "ptp", "ipam": local()}, {"type": "tuning", "mtu": 1400, "dataDir": "<root>/ipam"}, {"type": "sbr"}]),
            )),
        ),
        case("loopback", life(real(json!([{"type": "loopback"}])))),
        case("host-local alone", life(real(json!([{"type": "host-local", "ipam": local()}])))),
        case(
            "bridge, CHECK and DEL by the other",
            vec![
                real(json!([{"type": "bridge", "bridge": "br0", "ipam": local()}])),
                Run("add net a"),
                RunOther("check net a"),
                RunOther("del net a"),
            ],
        ),
        Case {
            explained: &["namespace-gone"],
            ..case(
                "bridge whose namespace is gone",
                vec![
                    real(json!([{"type": "bridge", "bridge": "br0", "ipam": local()}])),
                    Run("add net a"),
                    End("a"),
                    Run("del net a"),
                ],
            )
        },
    ]
}

fn both(case: &Case) -> (Value, Value) {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    std::thread::scope(|scope| {
        let sides = [Program::Ours, Program::Cnitool]
            .map(|program| scope.spawn(move || Host::new(program, root.to_owned()).observe(case)));
        let [ours, cnitool] = sides.map(|side| side.join().unwrap());
        (ours, cnitool)
    })
}

#[test]
#[ignore = "needs root, Go and NETCLAIM_CNI_BIN"]
fn the_command_line_does_what_cnitool_does() {
    let mut report = Report::new(Group::Cnitool);
    let bare = Case {
        name: "calls in full",
        env: Vec::new(),
        steps: vec![
            Step::Configure("10.conflist", network(json!([{"type": "beta"}]))),
            Step::Run("add net a"),
        ],
        explained: &[],
    };
    // A difference in every call, which the tests of the runtime show.
    let (ours, cnitool) = both(&bare);
    let args = |seen: &Value| seen[0]["calls"][0]["env"]["CNI_ARGS"].clone();
    assert_eq!((args(&ours), args(&cnitool)), ("IgnoreUnknown=1".into(), "".into()));
    for case in cases() {
        let real = case.steps.iter().any(
            |step| matches!(step, Step::Configure(_, network) if network.to_string().contains("host-local")),
        );
        if real && std::env::var_os("NETCLAIM_CNI_BIN").is_none() {
            report.skip(case.name, case.explained, "NETCLAIM_CNI_BIN is not set");
            continue;
        }
        let (mut ours, mut cnitool) = both(&case);
        without_ignore_unknown(&mut ours);
        without_ignore_unknown(&mut cnitool);
        report.compare(case.name, case.explained, &ours, &cnitool);
    }
    report.finish();
}
