//! This crate beside the scheduler: each case of the scheduler's own tables of allocations and of selectors,
//! which come with its Go module. The programs in `scheduler/` write them; nothing of the tables is in this
//! repository.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, DeviceClass, ResourceClaim, ResourceSlice};
use netclaim_allocation::selector::{Evaluation, SelectableDevice, Selector};
use netclaim_allocation::{Answer, Holdings, Question};
use serde::Deserialize;
use serde::de::DeserializeOwned;

const MODULE: &str = "k8s.io/dynamic-resource-allocation";

/// What the scheduler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scheduler {
    Yes,
    No,
    /// It stops, and the pod waits.
    Error,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Allocation {
    name: String,
    node: Node,
    claims: Vec<ResourceClaim>,
    classes: Option<Vec<DeviceClass>>,
    slices: Option<Vec<ResourceSlice>>,
    holders: Option<Vec<ResourceClaim>>,
    by_default: Scheduler,
    with_alpha: Scheduler,
    error: String,
}

#[derive(Deserialize)]
struct Selection {
    name: String,
    driver: String,
    device: Device,
    expression: String,
    answer: Scheduler,
    error: String,
}

fn succeeds(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().expect("this test needs Go and cp");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// The tables of allocations and of selectors, one case a line.
static TABLES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let pinned = tests.join("../../../tests/node/kubernetes");
    let module = succeeds(Command::new("go").args(["mod", "download", "-json", MODULE]).current_dir(pinned));
    let module: serde_json::Value = serde_json::from_str(&module).unwrap();
    // Only a package of the module sees its tables, and nothing may be added in Go's module cache.
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dynamic-resource-allocation");
    let _ = std::fs::remove_dir_all(&copy);
    let mode = "--no-preserve=mode";
    succeeds(Command::new("cp").args(["-r", mode, module["Dir"].as_str().unwrap()]).arg(&copy));
    for (program, package) in
        [("allocator_table_test.go", "structured/internal/experimental"), ("cel_table_test.go", "cel")]
    {
        let program = tests.join("scheduler").join(program);
        std::fs::copy(program, copy.join(package).join("written_table_test.go")).unwrap();
    }
    let tables = ["allocator", "cel"].map(|table| copy.join(format!("{table}.jsonl")));
    succeeds(
        Command::new("go")
            .args(["test", "-count=1", "-run=^TestWrittenTable$"])
            .args(["./structured/internal/experimental", "./cel"])
            .envs(["NETCLAIM_ALLOCATOR_TABLE", "NETCLAIM_CEL_TABLE"].into_iter().zip(&tables))
            .current_dir(copy),
    );
    tables
});

fn cases<T: DeserializeOwned>(table: &Path) -> Vec<T> {
    let text = std::fs::read_to_string(table).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// This crate's answer to a case, those of the schedulers that there are, and the reasons.
type Compared = (String, Answer, Vec<Scheduler>, String);

/// Prints how often who answers what, and returns the cases in which this crate is wrong.
fn compare(table: &str, answers: impl Iterator<Item = Compared>) -> Vec<String> {
    let mut counts = BTreeMap::<_, usize>::new();
    let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
    for (name, ours, schedulers, why) in answers {
        let is_right = |scheduler: &Scheduler| (ours == Answer::Yes) == (*scheduler == Scheduler::Yes);
        match ours {
            Answer::Unknown => unknown.push(name),
            _ if schedulers.iter().all(is_right) => {}
            _ => wrong.push(format!("{name}: {ours:?}, the scheduler: {schedulers:?}; {why}")),
        }
        *counts.entry((ours, schedulers)).or_default() += 1;
    }
    for ((ours, schedulers), count) in counts {
        println!("{table}: {ours:?} where the scheduler says {schedulers:?}: {count}");
    }
    println!("{table}: {} unknown: {}", unknown.len(), unknown.join(", "));
    wrong
}

#[test]
#[ignore = "needs Go and its module cache or proxy"]
fn no_answer_contradicts_the_schedulers_own_table_of_allocations() {
    let cases = cases::<Allocation>(&TABLES[0]);
    assert!(cases.len() >= 280, "{} cases", cases.len());
    let answers = cases.into_iter().map(|case| {
        let mut holdings = Holdings::default();
        case.holders.iter().flatten().for_each(|claim| holdings.add(claim));
        let mut question = Question::new(&case.claims, case.classes.as_deref().unwrap_or_default());
        let verdict = question.judge(&case.node, case.slices.iter().flatten(), &holdings);
        let reasons = verdict.requests.iter().flat_map(|request| &request.reasons).map(ToString::to_string);
        let why: Vec<String> = reasons.chain(verdict.together.iter().map(ToString::to_string)).collect();
        let schedulers = vec![case.by_default, case.with_alpha];
        (case.name, verdict.answer, schedulers, format!("{why:?}; {}", case.error))
    });
    let wrong = compare("allocations", answers);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs Go and its module cache or proxy"]
fn no_answer_contradicts_the_schedulers_own_table_of_selectors() {
    let cases = cases::<Selection>(&TABLES[1]);
    assert!(cases.len() >= 71, "{} cases", cases.len());
    // The API server refuses what costs that much, and here it takes minutes.
    let is_cheap = |case: &Selection| !case.error.contains("cost limit");
    let answers = cases.into_iter().filter(is_cheap).map(|case| {
        let device = SelectableDevice::new(&case.driver, &case.device);
        let evaluation = Selector::new(&case.expression).evaluate(&device);
        let ours = match &evaluation {
            Evaluation::Matches => Answer::Yes,
            Evaluation::Differs | Evaluation::Fails(_) => Answer::No,
            Evaluation::Unknown(_) => Answer::Unknown,
        };
        (case.name, ours, vec![case.answer], format!("{evaluation:?}; {}; {}", case.error, case.expression))
    });
    let wrong = compare("selectors", answers);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
