//! A runtime, its plugins and its cache in a directory of their own; one of each to compare.
//!
//! Below [`Side::root`]: `bin` holds the recorder under the plugins' names, `calls` what it noted, `replies`
//! what it shall answer, `real` the plugins it stands in front of, `cache` the runtime's cache; the rest is
//! the case's.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use netclaim_cni::{
    AddOutcome, Attachment, Cache, Cached, CniResult, ContainerId, Error, ErrorKind, IfName, NetworkList,
    Runtime, ValidAttachment,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::agent::Agent;
use crate::tools::tool;

/// A verb for both runtimes.
#[derive(Clone, Debug)]
pub struct Order {
    pub verb: &'static str,
    /// The network's JSON. `<root>` stands for the side's directory in it.
    pub list: String,
    pub container: String,
    pub netns: Option<PathBuf>,
    pub if_name: String,
    pub args: Vec<(String, String)>,
    pub capability_args: Map<String, Value>,
    pub valid: Vec<(String, String)>,
    pub timeout: Duration,
    /// Whether libcni gets the arguments without what this runtime adds.
    pub is_bare: bool,
}

impl Order {
    pub const LONG: Duration = Duration::from_secs(60);

    pub fn new(verb: &'static str, list: &Value) -> Self {
        Self {
            verb,
            list: list.to_string(),
            container: "c1".into(),
            netns: Some("/run/netns/x".into()),
            if_name: "net1".into(),
            args: Vec::new(),
            capability_args: Map::new(),
            valid: Vec::new(),
            timeout: Self::LONG,
            is_bare: false,
        }
    }
}

/// What the recorder is told to do; see its source.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Reply {
    pub deaf: bool,
    pub stderr: String,
    #[serde(serialize_with = "as_base64")]
    pub stdout: Vec<u8>,
    pub times: usize,
    pub child_ms: u64,
    pub sleep_ms: u64,
    pub polite: bool,
    pub stubborn: bool,
    pub signal: i32,
    pub exit: i32,
}

impl Reply {
    pub fn new(exit: i32, stdout: impl Into<Vec<u8>>) -> Self {
        Self { exit, stdout: stdout.into(), ..Self::default() }
    }
}

fn as_base64<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

/// One call of a plugin as the recorder noted it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Call {
    pub plugin: String,
    pub env: BTreeMap<String, String>,
    pub input: Option<String>,
}

impl Call {
    pub fn stdin(&self) -> Value {
        let bytes = STANDARD.decode(self.input.as_deref().unwrap_or_default()).unwrap();
        serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into())
    }
}

/// A runtime and its directory. Plugins run in the network namespace of the thread that made it.
pub struct Side {
    root: TempDir,
    engine: Engine,
}

enum Engine {
    Ours { runtime: Box<Runtime>, tokio: tokio::runtime::Runtime },
    Libcni { child: Child, stdin: ChildStdin, stdout: BufReader<ChildStdout> },
    Agent(Box<Agent>),
}

impl Side {
    pub fn ours() -> Self {
        let root = new_root();
        let runtime = Box::new(Runtime::new(vec![root.path().join("bin")]).unwrap());
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { root, engine: Engine::Ours { runtime, tokio } }
    }

    pub fn agent() -> Self {
        let root = new_root();
        let agent = Agent::new(root.path().join("bin"), &root.path().join("cache"));
        Self { root, engine: Engine::Agent(Box::new(agent)) }
    }

    pub fn libcni() -> Self {
        let mut child = Command::new(tool("libcni"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What plugins say there, and libcni repeats.
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { root: new_root(), engine: Engine::Libcni { child, stdin, stdout } }
    }

    /// Does the same with both, at the same time, each in a thread of its own.
    pub fn both<T: Send>(with: impl Fn(Self) -> T + Sync) -> (T, T) {
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| with(Self::ours()));
            let libcni = scope.spawn(|| with(Self::libcni()));
            (ours.join().unwrap(), libcni.join().unwrap())
        })
    }

    pub fn is_ours(&self) -> bool {
        matches!(self.engine, Engine::Ours { .. })
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn sub(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn cache(&self) -> Cache {
        Cache::new(self.sub("cache"))
    }

    /// Has the recorder stand for a plugin.
    pub fn record(&self, plugin: &str) {
        symlink(tool("recorder"), self.sub("bin").join(plugin)).unwrap();
    }

    /// Has it stand in front of a plugin's binary.
    pub fn record_before(&self, plugin: &str, real: &Path) {
        self.record(plugin);
        symlink(real, self.sub("real").join(plugin)).unwrap();
    }

    pub fn reply(&self, plugin: &str, verb: &str, reply: &Reply) {
        let path = self.sub("replies").join(format!("{plugin}.{verb}"));
        fs::write(path, serde_json::to_vec(reply).unwrap()).unwrap();
    }

    /// Forgets everything but the plugins.
    pub fn clear(&self) {
        for dir in ["replies", "cache", "calls"] {
            let _ = fs::remove_dir_all(self.sub(dir));
            fs::create_dir(self.sub(dir)).unwrap();
        }
    }

    /// The calls since the last look, in their order.
    pub fn calls(&self) -> Vec<Call> {
        let mut paths: Vec<_> = fs::read_dir(self.sub("calls")).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        let calls = paths.iter().map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap());
        let calls = calls.collect();
        paths.iter().for_each(|path| fs::remove_file(path).unwrap());
        calls
    }

    /// Runs a verb, and says what came of it: outcome, calls of plugins, and the cache.
    pub fn run(&mut self, order: &Order) -> Value {
        let mut seen = self.outcome(order);
        let calls: Vec<_> = self
            .calls()
            .into_iter()
            .map(|call| {
                let cni = |(key, _): &(&String, &String)| key.starts_with("CNI_");
                json!({
                    "plugin": call.plugin,
                    "env": call.env.iter().filter(cni).collect::<BTreeMap<_, _>>(),
                    "stdin": call.stdin(),
                })
            })
            .collect();
        seen["calls"] = calls.into();
        seen["cache"] = self.cache_files();
        self.without_root(&seen)
    }

    /// What came of a verb alone: a class, where a plugin reported an error what it said, and the result.
    pub fn outcome(&mut self, order: &Order) -> Value {
        let list = order.list.replace("<root>", self.root.path().to_str().unwrap());
        match &mut self.engine {
            Engine::Ours { .. } => self.ours_outcome(&list, order),
            Engine::Agent(agent) => agent.outcome(&list, order),
            Engine::Libcni { .. } => {
                // What this runtime always sends is the caller's to send with libcni.
                let added = (!order.is_bare).then(|| ("IgnoreUnknown".to_owned(), "1".to_owned()));
                let args: Vec<_> = added.into_iter().chain(order.args.iter().cloned()).collect();
                let valid: Vec<_> =
                    order.valid.iter().map(|(id, name)| json!({"containerID": id, "ifname": name})).collect();
                let answer = self.ask(json!({
                    "Verb": order.verb,
                    "List": list,
                    "ContainerID": order.container,
                    "NetNS": order.netns,
                    "IfName": order.if_name,
                    "Args": args,
                    "CapabilityArgs": order.capability_args,
                    "Valid": valid,
                    "TimeoutMs": u64::try_from(order.timeout.as_millis()).unwrap(),
                }));
                outcome(&answer)
            }
        }
    }

    /// Asks the program with libcni.
    pub fn ask(&mut self, mut order: Value) -> Value {
        order["Path"] = json!([self.sub("bin")]);
        order["CacheDir"] = json!(self.sub("cache"));
        let Engine::Libcni { stdin, stdout, .. } = &mut self.engine else { panic!("not libcni") };
        writeln!(stdin, "{order}").unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no answer to {order}: {line:?}"))
    }

    /// Runs something with this runtime.
    pub fn with_runtime<T>(&self, run: impl AsyncFnOnce(&Runtime) -> T) -> T {
        let Engine::Ours { runtime, tokio } = &self.engine else { panic!("not the runtime") };
        tokio.block_on(run(runtime))
    }

    /// What a caller does with [`Runtime`] and [`Cache`] where libcni does all of it.
    fn ours_outcome(&self, list: &str, order: &Order) -> Value {
        let list = match NetworkList::parse(list.as_bytes()) {
            Ok(list) => list,
            Err(_) => return json!({"class": "bad configuration"}),
        };
        let names = (order.container.parse::<ContainerId>(), order.if_name.parse::<IfName>());
        let (container_id, if_name) = match names {
            (Ok(container_id), Ok(if_name)) => (container_id, if_name),
            (Err(_), _) | (_, Err(_)) => return json!({"class": "bad argument"}),
        };
        let attachment = Attachment {
            args: order.args.clone(),
            capability_args: order.capability_args.clone().into(),
            ..Attachment::new(container_id, order.netns.clone(), if_name)
        };
        let cache = self.cache();
        let timeout = order.timeout;
        let known = || cache.load(list.name(), &attachment.container_id, &attachment.if_name);
        let done: Result<Value, Error> = self.with_runtime(async |runtime| match order.verb {
            "ADD" => {
                let result = runtime.add(&list, &attachment, timeout).await.map_err(|failed| failed.error)?;
                let raw = serde_json::from_str(result.raw()).unwrap();
                let (list, attachment) = (list.clone(), attachment.clone());
                cache.store(&Cached { list, attachment, outcome: AddOutcome::Attached(result) }).unwrap();
                Ok(raw)
            }
            "CHECK" => match known().ok().flatten().map(|known| known.outcome) {
                Some(AddOutcome::Attached(result)) => {
                    runtime.check(&list, &attachment, &result, timeout).await.map(|()| Value::Null)
                }
                _ => Ok(json!("no result")),
            },
            "DEL" => {
                let known = known().ok().flatten();
                let result = known.as_ref().and_then(|known| known.outcome.result());
                runtime.del(&list, &attachment, result, timeout).await?;
                let _ = cache.remove(list.name(), &attachment.container_id, &attachment.if_name);
                Ok(Value::Null)
            }
            "STATUS" => runtime.status(&list, timeout).await.map(|()| Value::Null),
            "GC" => {
                let valid: Vec<_> = order
                    .valid
                    .iter()
                    .map(|(id, name)| ValidAttachment {
                        container_id: id.parse().unwrap(),
                        if_name: name.parse().unwrap(),
                    })
                    .collect();
                self.gc(runtime, &list, &valid, timeout).await.map(|()| Value::Null)
            }
            other => panic!("unknown verb {other}"),
        });
        match done {
            Ok(text) if text == "no result" => json!({"class": "no result"}),
            Ok(result) => json!({"class": "ok", "result": result}),
            Err(error) => described(&error),
        }
    }

    /// libcni's GC begins with DEL of what its cache has and the list of valid attachments has not.
    async fn gc(
        &self,
        runtime: &Runtime,
        list: &NetworkList,
        valid: &[ValidAttachment],
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut errors = Vec::new();
        let stale = |known: &Cached| {
            known.list.name() == list.name()
                && !valid.iter().any(|valid| {
                    valid.container_id == known.attachment.container_id
                        && valid.if_name == known.attachment.if_name
                })
        };
        if !list.disable_gc() {
            for known in self.cache().attachments().unwrap().0.into_iter().filter(stale) {
                match runtime.del(list, &known.attachment, known.outcome.result(), timeout).await {
                    Ok(()) => {
                        let Attachment { container_id, if_name, .. } = &known.attachment;
                        self.cache().remove(list.name(), container_id, if_name).unwrap();
                    }
                    Err(error) => errors.push(error),
                }
            }
        }
        errors.extend(runtime.gc(list, valid, timeout).await.err().into_iter().flatten());
        if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
    }

    /// The files of the cache by name, with the configuration in clear.
    fn cache_files(&self) -> Value {
        let mut files = Map::new();
        for entry in fs::read_dir(self.sub("cache/results")).into_iter().flatten() {
            let path = entry.unwrap().path();
            let mut entry: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap_or_default();
            if let Some(config) = entry["config"].as_str() {
                entry["config"] = serde_json::from_slice(&STANDARD.decode(config).unwrap()).unwrap();
            }
            files.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), entry);
        }
        files.into()
    }

    pub fn without_root(&self, seen: &Value) -> Value {
        serde_json::from_str(&seen.to_string().replace(self.root().to_str().unwrap(), "<root>")).unwrap()
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Engine::Libcni { child, .. } = &mut self.engine {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn new_root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for dir in ["bin", "calls", "replies", "real", "cache", "netns", "ipam"] {
        fs::create_dir(root.path().join(dir)).unwrap();
    }
    root
}

/// An answer of the program with libcni. Only what plugins report has words that must be equal.
pub fn outcome(answer: &Value) -> Value {
    match answer["class"].as_str().unwrap() {
        "ok" => json!({"class": "ok", "result": answer["result"]}),
        "reported" => json!({
            "class": "reported", "code": answer["code"], "msg": answer["msg"], "details": answer["details"],
        }),
        class => json!({"class": class}),
    }
}

fn described(error: &Error) -> Value {
    // What a plugin says of one that it called itself looks there as if libcni had said it.
    if let Some(error) = error.reported() {
        if error.code == 0 && error.msg.starts_with("netplugin failed") {
            return json!({"class": "no error object"});
        }
        return json!({"class": "reported", "code": error.code, "msg": error.msg, "details": error.details});
    }
    let class = match error.kind() {
        ErrorKind::NotFound { .. } => "not found",
        ErrorKind::Request(_) => "bad argument",
        ErrorKind::Spawn { .. } => "cannot start",
        ErrorKind::Timeout { .. } => "timeout",
        ErrorKind::Signal { .. } => "signal",
        ErrorKind::Silent { .. } | ErrorKind::Garbage { .. } => "no error object",
        ErrorKind::NoCommonVersion { .. } => "version not supported",
        ErrorKind::NoCheck(_) => "no CHECK",
        _ => "unusable",
    };
    json!({"class": class})
}

/// What came of an operation that is this runtime's alone.
pub fn outcome_of<T: Into<Value>>(done: Result<T, Error>) -> Value {
    match done {
        Ok(result) => json!({"class": "ok", "result": result.into()}),
        Err(error) => described(&error),
    }
}

/// A result as JSON.
pub fn result_json(result: &CniResult) -> Value {
    serde_json::from_str(result.raw()).unwrap()
}
