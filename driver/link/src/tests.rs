//! Random histories of calls that are killed between two messages to the kernel. A killed call is a fake: it
//! fails at its next change, and changes nothing more.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use netclaim_plugin::Failure;
use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;

use crate::alias::Owner;
use crate::config::Part;
use crate::config::{Kind, LinkSpec};
use crate::host;
use crate::kernel::Kernel;

thread_local! {
    /// How many changes the call may make until it is killed.
    static LIFE: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Counts a change.
pub(crate) fn spend() -> Result<(), Failure> {
    match LIFE.get() {
        None => Ok(()),
        Some(0) => Err(Failure::State { code: 999, problem: "killed".to_owned() }),
        Some(left) => {
            LIFE.set(Some(left - 1));
            Ok(())
        }
    }
}

/// Links that are not the plugin's: uplinks, one with an address, one that is down, a bridge with a port.
const FOREIGN: &str = "link add u0 type veth peer p0
link add u1 alias x type veth peer p1
link set u1 alias \"uplink netclaim-port of rack 7 \"
link add u2 type veth peer p2
link add u3 type veth peer p3
link add idle type veth peer p4
link add f0 type veth peer p5
link add theirs alias x type bridge
link set theirs alias \"netclaim-made by hand\"
link set f0 master theirs
link add plain type bridge
address add 10.0.0.1/24 dev u3
link set u0 up
link set u1 up
link set u2 up
link set u3 up
link set f0 up
";
const BRIDGES: [&str; 4] = ["br0", "br1", "theirs", "plain"];
const PORTS: [&str; 7] = ["u0", "u1", "u2", "u3", "idle", "f0", "nowhere"];
const OWNERS: [(&str, &str, &str); 5] =
    [("a", "c1", "v1"), ("a", "c2", "v2"), ("a", "c2", "v3"), ("b", "c1", "v4"), ("b", "c3", "u2")];

#[derive(Debug, Clone)]
enum Call {
    /// ADD of this owner; if its last ADD has had no DEL yet, the same again.
    Add {
        owner: usize,
        wanted: LinkSpec,
    },
    Del {
        owner: usize,
    },
    /// GC of the network of this owner, with the attachments whose bits are set.
    Gc {
        owner: usize,
        valid: u8,
    },
}

fn owner(index: usize) -> Owner {
    let (network, container, interface) = OWNERS[index];
    Owner { network: network.to_owned(), container: container.to_owned(), interface: interface.to_owned() }
}

fn any_wanted() -> impl Strategy<Value = LinkSpec> {
    // What works comes more often.
    let bridge =
        (prop_oneof![4 => 0..2_usize, 1 => 2..4_usize], prop_oneof![4 => 0..3_usize, 1 => 3..7_usize]);
    let bridge = bridge.prop_map(|(bridge, port)| Kind::Bridge {
        bridge: BRIDGES[bridge].to_owned(),
        port: PORTS[port].to_owned(),
        is_chained: false,
    });
    let vlan =
        (0..7_usize, 1..3_u16).prop_map(|(port, id)| Kind::Vlan { master: PORTS[port].to_owned(), id });
    prop_oneof![3 => bridge, 1 => vlan].prop_map(|kind| LinkSpec { kind, mtu: None })
}

fn any_call() -> impl Strategy<Value = Call> {
    let owner = 0..OWNERS.len();
    prop_oneof![
        4 => (owner.clone(), any_wanted()).prop_map(|(owner, wanted)| Call::Add { owner, wanted }),
        3 => owner.clone().prop_map(|owner| Call::Del { owner }),
        1 => (owner, any::<u8>()).prop_map(|(owner, valid)| Call::Gc { owner, valid }),
    ]
}

fn ip(batch: &str) {
    let mut child = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("iproute2");
    child.stdin.take().expect("a pipe").write_all(batch.as_bytes()).expect("is read");
    assert!(child.wait().expect("ends").success(), "{batch}");
}

/// All links, but for what changes by itself.
fn links() -> Vec<String> {
    let found = Kernel::lock().and_then(|mut kernel| kernel.links()).expect("are read");
    found.iter().map(|link| format!("{link:?}")).collect()
}

#[derive(Default)]
struct World {
    /// What each owner wanted with its last ADD, until a DEL has succeeded.
    asked: [Option<LinkSpec>; OWNERS.len()],
    /// Whose ADD has succeeded.
    attached: BTreeSet<usize>,
}

impl World {
    fn run(&mut self, call: &Call) {
        match call {
            Call::Add { owner: index, wanted } => {
                // A network has one configuration.
                let mtu = (OWNERS[*index].0 == "a").then_some(1400);
                let wanted =
                    self.asked[*index].get_or_insert_with(|| LinkSpec { mtu, ..wanted.clone() }).clone();
                self.attached.remove(index);
                let added = Kernel::lock().and_then(|mut k| host::add(&mut k, &owner(*index), &wanted));
                if added.is_ok() {
                    self.attached.insert(*index);
                }
            }
            Call::Del { owner: index } => {
                let Some(wanted) = &self.asked[*index] else { return };
                self.attached.remove(index);
                let part = wanted.kind.part();
                if Kernel::lock().and_then(|mut k| host::del(&mut k, &owner(*index), part)).is_ok() {
                    self.asked[*index] = None;
                }
            }
            Call::Gc { owner: index, valid } => {
                let network = OWNERS[*index].0;
                let is_valid = |index: usize| OWNERS[index].0 != network || valid & 1 << index != 0;
                self.attached.retain(|index| is_valid(*index));
                let is_gone = |one: &Owner| !(0..OWNERS.len()).any(|i| is_valid(i) && owner(i) == *one);
                let _ = Kernel::lock().and_then(|mut k| host::remove(&mut k, network, &is_gone, Part::All));
            }
        }
    }

    fn all_attached_are_as_they_were_made(&self) {
        for index in &self.attached {
            let wanted = self.asked[*index].as_ref().expect("was asked for");
            let checked = Kernel::lock().and_then(|mut k| host::check(&mut k, &owner(*index), wanted));
            assert!(checked.is_ok(), "{:?}: {}", owner(*index), checked.unwrap_err());
        }
    }
}

fn live(calls: &[(Call, Option<u32>)]) {
    unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
    ip(FOREIGN);
    let before = links();
    let mut world = World::default();
    for (call, life) in calls {
        LIFE.set(*life);
        world.run(call);
        LIFE.set(None);
        world.all_attached_are_as_they_were_made();
    }
    for owner in 0..OWNERS.len() {
        world.run(&Call::Del { owner });
    }
    assert_eq!(links(), before);
    assert!(world.asked.iter().all(Option::is_none));
    let kind = Kind::Bridge { bridge: "br0".to_owned(), port: "u0".to_owned(), is_chained: false };
    world.run(&Call::Add { owner: 0, wanted: LinkSpec { kind, mtu: None } });
    assert!(world.attached.contains(&0), "an ADD works again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[ignore = "needs root"]
    fn nothing_is_left_of_any_history_and_nothing_else_is_touched(
        calls in prop::collection::vec((any_call(), prop::option::of(0..7_u32)), 1..25)
    ) {
        let history = calls.clone();
        let lived = thread::spawn(move || live(&history)).join();
        prop_assert!(lived.is_ok(), "{calls:#?}");
    }
}
