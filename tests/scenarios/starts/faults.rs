//! What becomes of a pod's network when something dies, stops or restarts: the same faults for each peer.
//!
//! netclaim's agent and its parent are killed together, and the kubelet starts them again. For a peer, whose
//! daemon is a process of the benchmark, the benchmark does that: after [`AWAY`], or at once while the pod
//! runs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netclaim_tests::objects::pod;
use netclaim_tests::{is_alive, signal};

use crate::measure::{START_TIMEOUT, Turn};
use crate::samples::{Samples, short, table};

/// How long a daemon that was killed is away.
const AWAY: Duration = Duration::from_secs(8);
/// How long a daemon is stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// How long the kubelet gets to ask for the pod's claims before the sandbox.
const PREPARED: Duration = Duration::from_secs(2);
/// How long after its start a pod is looked at again.
const LATER: Duration = Duration::from_secs(5);
/// How long what a pod used may take to be free.
const FREE: Duration = Duration::from_secs(90);

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    KilledBeforeSandbox,
    StoppedBeforeSandbox,
    DeletedMeanwhile,
    RuntimeRestarts,
    KubeletRestarts,
    KilledMeanwhile,
}

impl Fault {
    pub const ALL: [Self; 6] = [
        Self::KilledBeforeSandbox,
        Self::StoppedBeforeSandbox,
        Self::DeletedMeanwhile,
        Self::RuntimeRestarts,
        Self::KubeletRestarts,
        Self::KilledMeanwhile,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::KilledBeforeSandbox => "F1 killed after the claims are prepared and before the sandbox",
            Self::StoppedBeforeSandbox => "F2 stopped for 5 s at that time",
            Self::DeletedMeanwhile => "F3 killed; the pod is deleted by force; started again",
            Self::RuntimeRestarts => "F4 the runtime restarts; the pod is deleted",
            Self::KubeletRestarts => "F5 the kubelet restarts; a pod is created",
            Self::KilledMeanwhile => "F6 killed and started again while a pod runs; the pod is deleted",
        }
    }

    /// `F1` and so on.
    fn id(self) -> &'static str {
        &self.name()[..2]
    }

    fn number(self, what: &str) -> String {
        format!("{}: {what}", self.id())
    }
}

const TOOK: &str = "create to Running ms";
const HAD: &str = "has net1 when it runs";
const HAS: &str = "has net1 later";
const FREED: &str = "free after s";
const LEFT: &str = "left behind";
const ENDED: &str = "its daemon ended by itself";

impl Turn<'_> {
    /// Goes through all faults, one after another.
    pub fn faults(&mut self) -> Result<()> {
        for fault in Fault::ALL {
            eprintln!("         {}: {}", self.who.name(), fault.name());
            let name = format!("{}-{}-{}", self.who.name(), fault.id().to_lowercase(), self.round);
            self.one_fault(fault, &name)?;
            self.who.recover()?;
            self.samples.save()?;
        }
        Ok(())
    }

    fn note_fault(&mut self, fault: Fault, what: &str, of: &str, value: f64) {
        self.add(&fault.number(what), of, value);
    }

    fn one_fault(&mut self, fault: Fault, name: &str) -> Result<()> {
        ensure!(self.who.left()? == 0, "{} has something left of an earlier pod", self.who.name());
        let (cluster, mut pod) = (self.test.cluster, pod(name, &[]));
        self.who.dress(&mut pod);
        let service = |verb: &str, name: &str| cluster.service(verb, name).map(drop);
        match fault {
            Fault::KilledBeforeSandbox | Fault::StoppedBeforeSandbox => {
                service("pause", "runtime")?;
                let created = self.pods.create(&[pod])?;
                std::thread::sleep(PREPARED);
                let is_killed = fault == Fault::KilledBeforeSandbox;
                self.signal(if is_killed { "KILL" } else { "STOP" })?;
                service("resume", "runtime")?;
                std::thread::sleep(if is_killed { AWAY } else { STOPPED });
                if is_killed {
                    self.who.restart()?
                } else {
                    self.signal("CONT")?
                }
                self.runs(fault, &created)?;
            }
            Fault::KubeletRestarts => {
                service("restart", "kubelet")?;
                let created = self.pods.create(&[pod])?;
                self.runs(fault, &created)?;
            }
            Fault::DeletedMeanwhile => {
                self.pods.start(&[pod], START_TIMEOUT)?;
                self.signal("KILL")?;
                self.test.delete_pod_by_force(name)?;
                std::thread::sleep(AWAY);
                self.who.restart()?;
                return self.becomes_free(fault, name);
            }
            Fault::RuntimeRestarts => {
                self.pods.start(&[pod], START_TIMEOUT)?;
                service("restart", "runtime")?;
                std::thread::sleep(LATER);
                let ended = !self.who.daemons()?.into_iter().all(is_alive);
                self.note_fault(fault, ENDED, name, f64::from(u8::from(ended)));
                if ended {
                    self.who.restart()?;
                }
            }
            Fault::KilledMeanwhile => {
                self.pods.start(&[pod], START_TIMEOUT)?;
                self.signal("KILL")?;
                self.who.restart()?;
            }
        }
        self.pods.delete(&[name.to_owned()])?;
        self.becomes_free(fault, name)
    }

    /// Sends a signal to its daemons.
    fn signal(&self, name: &str) -> Result<()> {
        self.who.daemons()?.into_iter().try_for_each(|pid| signal(pid, name))
    }

    /// Waits until the pod runs, and looks at its network then and later.
    fn runs(&mut self, fault: Fault, created: &[(String, Duration)]) -> Result<()> {
        for pod in self.pods.running(created, START_TIMEOUT)? {
            self.note_fault(fault, TOOK, &pod.name, pod.took());
            for (what, wait) in [(HAD, Duration::ZERO), (HAS, LATER)] {
                std::thread::sleep(wait);
                let there = self.test.interfaces(&pod.name)?.contains_key("net1");
                self.note_fault(fault, what, &pod.name, f64::from(u8::from(there)));
            }
        }
        Ok(())
    }

    /// Waits until what the pod used is free, and counts what is not.
    fn becomes_free(&mut self, fault: Fault, name: &str) -> Result<()> {
        let begin = Instant::now();
        let mut left = self.who.left()?;
        while left > 0 && begin.elapsed() < FREE {
            std::thread::sleep(Duration::from_millis(200));
            left = self.who.left()?;
        }
        self.note_fault(fault, FREED, name, begin.elapsed().as_secs_f64());
        self.note_fault(fault, LEFT, name, left as f64);
        self.who.forget()
    }
}

/// The table of all faults.
pub fn faults_table(samples: &Samples, who: &[&str]) -> String {
    let cell = |fault: Fault, who: &str| {
        let number = |what: &str| samples.median(who, &fault.number(what));
        let mut parts = Vec::new();
        if let Some(took) = number(TOOK) {
            parts.push(format!("Running after {} s", short(took / 1000.0)));
        }
        parts.extend(
            match (number(HAD), number(HAS)) {
                (Some(had), _) if had > 0.0 => Some("with net1"),
                (Some(_), Some(has)) if has > 0.0 => Some("**without net1, which comes later**"),
                (Some(_), _) => Some("**without net1**"),
                _ => None,
            }
            .map(str::to_owned),
        );
        if number(ENDED).is_some_and(|ended| ended > 0.0) {
            parts.push("**the daemon ends**".to_owned());
        }
        parts.extend(match (number(LEFT), number(FREED)) {
            (Some(left), _) if left > 0.0 => Some(format!("**{left} left**")),
            (_, Some(freed)) => Some(format!("free after {} s", short(freed))),
            _ => None,
        });
        parts.join("; ")
    };
    let row = |fault: Fault| {
        let cells = who.iter().map(|who| cell(fault, who));
        std::iter::once(fault.name().to_owned()).chain(cells).collect::<Vec<_>>()
    };
    let head: Vec<&str> = std::iter::once("").chain(who.iter().copied()).collect();
    table(&head, Fault::ALL.map(row))
}
