//! The plugin beside a fake agent, with patience of milliseconds.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netclaim_plugin::{Config, Failure};
use nix::sys::socket::{Backlog, listen};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Call, add, del, pod_uid};
use crate::ask::{MAX_ANSWER, Patience};

/// More than any answer of a fake takes.
const ENOUGH: Duration = Duration::from_secs(10);
/// For questions that nobody answers.
const SHORT: Duration = Duration::from_millis(50);

/// What a fake agent does with a question.
enum Does {
    Answers(Vec<u8>),
    /// Ends after this part of an answer.
    EndsWith(&'static str),
    /// Works for longer than anybody waits.
    IsSilent,
}

fn answers(answer: &str) -> Does {
    Does::Answers(format!("{answer}\n").into_bytes())
}

/// A folder with a socket, and the configuration that names it.
struct World {
    dir: TempDir,
    call: Call,
}

impl World {
    fn new() -> Self {
        let call = Call {
            interface: Some("eth0".to_owned()),
            sandbox: Some("s1".to_owned()),
            netns: Some("/run/netns/n1".to_owned()),
            pod: Some("p1".to_owned()),
        };
        Self { dir: tempfile::tempdir().unwrap(), call }
    }

    fn socket(&self) -> String {
        self.dir.path().join("primary.sock").to_str().unwrap().to_owned()
    }

    fn config(&self, more: Value) -> Config {
        let mut config = json!({"cniVersion": "1.1.0", "name": "netclaim-primary", "type": "netclaim-primary",
            "socket": self.socket()});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Config::parse(config.to_string().as_bytes()).unwrap()
    }

    fn add(&self, patience: Duration) -> Result<String, Failure> {
        add(&self.config(json!({})), &self.call, whole(patience))
    }

    /// Starts a fake agent for as many questions as `does` has entries; it returns them.
    fn agent(&self, does: Vec<Does>) -> JoinHandle<Vec<Value>> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let serve = move || does.into_iter().map(|does| serve(&listener, does)).collect();
        thread::spawn(serve)
    }
}

fn serve(listener: &UnixListener, does: Does) -> Value {
    let (mut stream, _) = listener.accept().unwrap();
    let mut question = String::new();
    BufReader::new(&stream).read_line(&mut question).unwrap();
    match does {
        // The plugin reads no more than it accepts.
        Does::Answers(answer) => drop(stream.write_all(&answer)),
        Does::EndsWith(part) => stream.write_all(part.as_bytes()).unwrap(),
        // Until the plugin ends the connection.
        Does::IsSilent => assert_eq!(stream.read(&mut [0]).unwrap(), 0),
    }
    serde_json::from_str(&question).unwrap()
}

fn code(failure: &Failure) -> u32 {
    match failure {
        Failure::State { code, .. } => *code,
        other => panic!("{other}"),
    }
}

#[test]
fn an_add_returns_the_agents_result_to_the_byte() {
    let world = World::new();
    let result = r#"{"cniVersion":"1.1.0", "ips":[ {"address":"10.9.0.2/24"} ],"x":1.50,"x2":"\u00e4"}"#;
    let agent = world.agent(vec![answers(&format!(r#" {{"result": {result} }}"#))]);
    assert_eq!(world.add(ENOUGH).unwrap(), result);
    let question = json!({"command": "ADD", "sandbox": "s1", "netns": "/run/netns/n1", "pod": "p1"});
    assert_eq!(agent.join().unwrap(), [question]);
}

#[test]
fn an_agent_that_comes_late_answers_too() {
    let world = World::new();
    thread::scope(|scope| {
        let asked = scope.spawn(|| world.add(ENOUGH));
        thread::sleep(SHORT);
        world.agent(vec![answers(r#"{"result": {}}"#)]);
        assert_eq!(asked.join().unwrap().unwrap(), "{}");
    });
}

#[test]
fn an_add_without_an_agent_is_to_be_tried_again() {
    let world = World::new();
    let is_told = |failure: &Failure| {
        assert_eq!(code(failure), Failure::TRY_AGAIN, "{failure}");
        let problem = failure.to_string();
        assert!(
            problem.contains(&world.socket()) && problem.contains("look at the agent's pod"),
            "{problem}"
        );
    };
    is_told(&world.add(SHORT).unwrap_err());
    // Left by an agent that was killed.
    drop(UnixListener::bind(world.socket()).unwrap());
    is_told(&world.add(SHORT).unwrap_err());
}

#[test]
fn the_next_agent_is_asked_when_one_ends_without_an_answer() {
    let world = World::new();
    let part = r#"{"result": {"cniVersion""#;
    let agent =
        world.agent(vec![Does::EndsWith(""), Does::EndsWith(part), answers(r#"{"result": {"n": 3}}"#)]);
    assert_eq!(world.add(ENOUGH).unwrap(), r#"{"n": 3}"#);
    let asked = agent.join().unwrap();
    assert!(asked.iter().all(|question| *question == asked[0]), "{asked:?}");
}

#[test]
fn an_agent_that_works_for_too_long_is_not_waited_for() {
    let world = World::new();
    let agent = world.agent(vec![Does::IsSilent]);
    let failure = world.add(SHORT).unwrap_err();
    assert_eq!(code(&failure), Failure::TRY_AGAIN);
    assert!(failure.to_string().contains("within 50ms: look at the events of the pod"), "{failure}");
    agent.join().unwrap();
}

#[test]
fn an_agent_that_accepts_no_connection_is_not_waited_for() {
    let world = World::new();
    let listener = UnixListener::bind(world.socket()).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let _waits = UnixStream::connect(world.socket()).unwrap();
    let begin = Instant::now();
    assert_eq!(code(&world.add(SHORT).unwrap_err()), Failure::TRY_AGAIN);
    assert!(begin.elapsed() < ENOUGH);
}

#[test]
fn an_agent_that_drips_is_not_waited_for() {
    let world = World::new();
    let listener = UnixListener::bind(world.socket()).unwrap();
    let drip = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(code(&world.add(SHORT).unwrap_err()), Failure::TRY_AGAIN);
    drip.join().unwrap();
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let long = vec![b' '; MAX_ANSWER as usize + 1];
    for (answer, problem) in [
        (b"open\n".to_vec(), "expected value"),
        (b"\xff\n".to_vec(), "expected value"),
        (b"[]\n".to_vec(), "not an answer"),
        (b"{}\n".to_vec(), "its result is not an object"),
        (b"{\"result\": null}\n".to_vec(), "its result is not an object"),
        (b"{\"result\": \"{}\"}\n".to_vec(), "its result is not an object"),
        (b"{\"error\": {\"code\": -1, \"msg\": \"\"}}\n".to_vec(), "invalid value"),
        (long, "longer than 1048576 bytes"),
    ] {
        let world = World::new();
        let agent = world.agent(vec![Does::Answers(answer)]);
        let failure = world.add(ENOUGH).unwrap_err();
        assert_eq!(code(&failure), 101);
        let text = failure.to_string();
        assert!(text.contains(problem) && text.contains("restart the agent"), "{text}");
        agent.join().unwrap();
    }
}

#[test]
fn the_longest_answer_is_read() {
    let world = World::new();
    let around = r#"{"result":{"x":""}}"#.len() + 1;
    let result = format!(r#"{{"x":"{}"}}"#, "y".repeat(MAX_ANSWER as usize - around));
    let agent = world.agent(vec![answers(&format!(r#"{{"result":{result}}}"#))]);
    assert!(world.add(ENOUGH).unwrap() == result);
    agent.join().unwrap();
}

#[test]
fn the_agents_error_is_passed_on_with_its_code() {
    let world = World::new();
    let agent = world.agent(vec![
        answers(r#"{"error": {"code": 7, "msg": "no address is left"}}"#),
        answers(r#"{"error": {"code": 11, "msg": "wait"}}"#),
    ]);
    let failure = world.add(ENOUGH).unwrap_err();
    assert_eq!((code(&failure), failure.to_string().as_str()), (7, "no address is left"));
    let failure = world.add(ENOUGH).unwrap_err();
    assert_eq!(code(&failure), 11);
    agent.join().unwrap();
}

/// As long for an agent that is away, as an ADD of the tests has.
fn whole(busy: Duration) -> Patience {
    Patience { busy, away: busy }
}

/// A fifth of it for an agent that is away, as a DEL of the runtime has.
fn of(busy: Duration) -> Patience {
    Patience { busy, away: busy / 5 }
}

#[test]
fn a_del_is_told_and_ends_whatever_the_agent_does() {
    let mut world = World::new();
    let del = |world: &World, busy| del(&world.config(json!({})), &world.call, of(busy));
    let begin = Instant::now();
    del(&world, SHORT);
    let agent = world.agent(vec![
        answers(r#"{"result": null}"#),
        answers(r#"{"error": {"code": 11, "msg": "the plugin fails"}}"#),
        answers("nonsense"),
    ]);
    del(&world, ENOUGH);
    world.call.netns = None;
    del(&world, ENOUGH);
    del(&world, ENOUGH);
    // Neither of them is known to the agent.
    del(&World { call: Call { pod: None, ..world.call.clone() }, ..World::new() }, ENOUGH);
    del(&World { call: Call { sandbox: None, ..world.call.clone() }, ..World::new() }, ENOUGH);
    super::del(&world.config(json!({"socket": 7})), &world.call, of(ENOUGH));
    let asked = agent.join().unwrap();
    assert_eq!(asked[0], json!({"command": "DEL", "sandbox": "s1", "pod": "p1"}));
    assert_eq!(asked[1], json!({"command": "DEL", "sandbox": "s1", "pod": "p1"}));
    assert!(begin.elapsed() < ENOUGH);
}

#[test]
fn a_del_beside_a_silent_agent_ends() {
    let world = World::new();
    let agent = world.agent(vec![Does::IsSilent]);
    del(&world.config(json!({})), &world.call, of(SHORT));
    agent.join().unwrap();
}

#[test]
fn an_add_that_is_not_for_the_agent_is_refused_at_once() {
    // Without a socket: a question would take ten seconds.
    let world = World::new();
    let refused = |change: fn(&mut Call), more: Value| {
        let mut call = world.call.clone();
        change(&mut call);
        add(&world.config(more), &call, whole(ENOUGH)).unwrap_err().to_string()
    };
    let begin = Instant::now();
    let ports = json!({"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}});
    for (error, expected) in [
        (
            refused(|call| call.interface = Some("net1".to_owned()), json!({})),
            "CNI_IFNAME: \"net1\" is not eth0",
        ),
        (refused(|call| call.interface = None, json!({})), "CNI_IFNAME: is not set"),
        (refused(|call| call.sandbox = None, json!({})), "CNI_CONTAINERID: is not set"),
        (refused(|call| call.netns = None, json!({})), "CNI_NETNS: is not set"),
        (refused(|call| call.pod = None, json!({})), "CNI_ARGS: has no K8S_POD_UID"),
        (refused(|_| (), json!({"socket": null})), "socket: is missing: delete the file"),
        (refused(|_| (), json!({"socket": "/x".repeat(99)})), "socket: cannot connect to /x/x"),
        (
            refused(|_| (), ports),
            "runtimeConfig.portMappings: the hostPort 8080 of a container is not served",
        ),
    ] {
        assert!(error.contains(expected), "{error}");
    }
    assert!(begin.elapsed() < ENOUGH);
}

#[test]
fn an_add_without_host_ports_is_asked() {
    for ports in [json!({}), json!({"portMappings": null}), json!({"portMappings": []})] {
        let world = World::new();
        let agent = world.agent(vec![answers(r#"{"result": {}}"#)]);
        let config = world.config(json!({"runtimeConfig": ports}));
        assert_eq!(add(&config, &world.call, whole(ENOUGH)).unwrap(), "{}");
        agent.join().unwrap();
    }
}

#[test]
fn hostile_names_stay_strings() {
    let mut world = World::new();
    let hostile = "s\"}\n{\"command\":\"DEL\",\\u0000../\u{1}\u{2028}ä";
    world.call.sandbox = Some(hostile.to_owned());
    world.call.pod = Some(hostile.to_owned());
    let agent = world.agent(vec![answers(r#"{"result": {}}"#)]);
    world.add(ENOUGH).unwrap();
    let asked = json!({"command": "ADD", "sandbox": hostile, "netns": "/run/netns/n1", "pod": hostile});
    assert_eq!(agent.join().unwrap(), [asked]);
}

#[test]
fn the_pods_uid_is_found_in_the_arguments() {
    let of = |args: &str| pod_uid(args);
    let containerd =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=d;K8S_POD_NAME=n;K8S_POD_INFRA_CONTAINER_ID=s;K8S_POD_UID=u-1";
    assert_eq!(of(containerd).as_deref(), Some("u-1"));
    for without in ["", ";", "K8S_POD_UID", "K8S_POD_UID=", "XK8S_POD_UID=u", "IgnoreUnknown=1"] {
        assert_eq!(of(without), None, "{without}");
    }
}
