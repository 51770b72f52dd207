//! What a network that nodes set up (`spec.node`) costs the start of its pods: the first one on a node, and
//! those that find it there, beside pods of a bridge that is always there.

use anyhow::{Result, ensure};
use netclaim_tests::objects::{claim_template, pod_of_template};
use netclaim_tests::{Plugged, Test, eventually};
use serde_json::{Value, json};

use crate::measure::START_TIMEOUT;
use crate::own::{count, order, rounds};
use crate::pods::Pods;
use crate::samples::{Samples, table};

/// Who a start is of; each has a template of its name.
const WITHOUT: &str = "bridge";
const THERE: &str = "there";
const FIRST: &str = "first";
const WHAT: &str = "create to Running ms";

/// Creates a ClaimNetwork of `bridge`, which the node makes if it is to, and the template of its claims.
fn bridged(test: &Test<'_>, name: &str, uplink: &str, bridge: &str, made: bool) -> Result<()> {
    let network = test.network_on(uplink, name, |network| {
        let plugin = &mut network["spec"]["cni"]["plugins"][0];
        *plugin = json!({"type": "bridge", "bridge": bridge, "ipam": plugin["ipam"]});
        if made {
            let link =
                json!({"type": "netclaim-link", "kind": "bridge", "bridge": bridge, "master": "${uplink.name}"});
            network["spec"]["node"] = json!({"interfaceName": bridge, "idleSeconds": 1,
                "cni": {"cniVersion": "1.1.0", "plugins": [link]}});
        }
    })?;
    test.create([claim_template(name, &network)])?;
    test.is_published(&format!("net-{network}"), |device| device["taints"].is_null())
}

/// Waits until nothing is set up on the node.
fn nothing_is_set_up(test: &Test<'_>) -> Result<()> {
    eventually(60, "what was set up is gone", || {
        let left = test.cluster.node().node_journal()?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
}

pub fn a_network_of_the_node_costs_its_pods_a_chain_once(test: &Test<'_>) -> Result<()> {
    let mut samples = Samples::new("starts", "node-network")?;
    let pods = Pods::of(test)?;
    let _bridge = Plugged::bridge(test, "br94")?;
    let uplinks = (Plugged::new(test, "eth94")?, Plugged::new(test, "eth95")?, Plugged::new(test, "eth96")?);
    let (port, ..) = &uplinks;
    port.set(&["eth94", "master", "br94"])?;
    bridged(test, WITHOUT, "eth94", "br94", false)?;
    bridged(test, THERE, "eth95", "br95", true)?;
    bridged(test, FIRST, "eth96", "br96", true)?;
    let who = [WITHOUT, THERE, FIRST];
    for round in 0..rounds(3)? {
        for who in order(round, who) {
            let one_by_one = |name: &str| -> Result<f64> {
                let pod: Value = pod_of_template(name, who);
                let started = pods.start(&[pod], START_TIMEOUT)?;
                Ok(started.first().map(|pod| pod.took()).unwrap_or_default())
            };
            let stays = format!("stays-{round}");
            if who == THERE {
                one_by_one(&stays)?;
            }
            for n in 0..count()? {
                let name = format!("{who}-{round}-{n}");
                samples.add(round, who, WHAT, &name, one_by_one(&name)?);
                pods.delete(&[name])?;
                if who == FIRST {
                    nothing_is_set_up(test)?;
                }
            }
            if who == THERE {
                pods.delete(&[stays])?;
                nothing_is_set_up(test)?;
            }
            samples.save()?;
        }
    }
    let head = ["", "a bridge that is always there", "set up on the node before", "set up for this pod"];
    let row = who.map(|who| samples.cell(who, WHAT)).into_iter();
    let row = std::iter::once("one by one: create to Running, ms".to_owned()).chain(row).collect();
    samples.publish("table.md", &table(&head, [row]))
}
