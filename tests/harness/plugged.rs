//! Links that a scenario adds to a node.

use std::process::Command;
use std::sync::Arc;

use anyhow::Result;

use crate::command::output;
use crate::node::Node;
use crate::test::Test;

/// A link that is on a node while this value lives: one end of a veth pair, whose other end is `far-NAME` or
/// on another node, or a bridge.
pub struct Plugged<'a> {
    test: &'a Test<'a>,
    node: Arc<Node>,
    ends: [String; 2],
}

impl<'a> Plugged<'a> {
    /// Adds the link to the first node and sets both ends up.
    pub fn new(test: &'a Test<'a>, name: &str) -> Result<Self> {
        Self::on(test, "node0", name)
    }

    /// Adds a bridge to the first node and sets it up.
    pub fn bridge(test: &'a Test<'a>, name: &str) -> Result<Self> {
        let node = test.cluster.node();
        let plugged = Self { test, node, ends: [name.to_owned(), name.to_owned()] };
        plugged.ip(&["link", "add", name, "type", "bridge"])?;
        plugged.node.plugged().insert(name.to_owned());
        plugged.set(&[name, "up"])?;
        Ok(plugged)
    }

    /// As [`Self::new`], on another node.
    pub fn on(test: &'a Test<'a>, node: &str, name: &str) -> Result<Self> {
        let far = format!("far-{name}");
        let node = test.cluster.node_named(node)?;
        let plugged = Self { test, node, ends: [name.to_owned(), far.clone()] };
        plugged.ip(&["link", "add", name, "type", "veth", "peer", "name", &far])?;
        plugged.node.plugged().extend(plugged.ends.clone());
        for end in &plugged.ends {
            plugged.set(&[end, "up"])?;
        }
        Ok(plugged)
    }

    /// Adds a wire between two nodes, whose ends have this name on both, and sets the ends up.
    pub fn between(test: &'a Test<'a>, nodes: [&str; 2], name: &str) -> Result<[Self; 2]> {
        let [one, other] = nodes.map(|node| test.cluster.node_named(node));
        let (one, other) = (one?, other?);
        let netns = other.pid().to_string();
        let ends = [one, other].map(|node| Self { test, node, ends: [name.to_owned(), name.to_owned()] });
        ends[0].ip(&["link", "add", name, "type", "veth", "peer", "name", name, "netns", &netns])?;
        for end in &ends {
            end.node.plugged().insert(name.to_owned());
            end.set(&[name, "up"])?;
        }
        Ok(ends)
    }

    /// Runs `ip link set WORDS` on the node.
    pub fn set(&self, words: &[&str]) -> Result<()> {
        self.ip(&[&["link", "set"], words].concat())
    }

    fn ip(&self, words: &[&str]) -> Result<()> {
        self.test.cluster.on(&self.node.name(), &[&["ip"], words].concat()).map(drop)
    }
}

impl Drop for Plugged<'_> {
    fn drop(&mut self) {
        let [_, far] = &self.ends;
        // The kernel deletes the other end too, wherever it is.
        let _ = self.ip(&["link", "del", far]);
        self.node.plugged().retain(|name| !self.ends.contains(name));
    }
}

/// Many links, `eth1000` and up, that are on the node while this value lives.
pub struct PluggedMany<'a> {
    test: &'a Test<'a>,
    count: usize,
}

impl<'a> PluggedMany<'a> {
    /// Adds the links and sets them up.
    pub fn new(test: &'a Test<'a>, count: usize) -> Result<Self> {
        let plugged = Self { test, count };
        plugged.each("link add eth$n type veth peer name far-eth$n")?;
        plugged.each("link set far-eth$n up")?;
        plugged.each("link set eth$n up")?;
        Ok(plugged)
    }

    /// Deletes the links.
    pub fn take_out(&self) -> Result<()> {
        self.each("link del far-eth$n")
    }

    fn each(&self, command: &str) -> Result<()> {
        let last = 999 + self.count;
        // What is left is deleted even if something else was lost.
        let script = format!("for n in $(seq 1000 {last}); do echo {command}; done | ip -force -batch -");
        self.test.cluster.on_node(&["bash", "-c", &script]).map(drop)
    }
}

impl Drop for PluggedMany<'_> {
    fn drop(&mut self) {
        // Fails after `take_out`, which has deleted them.
        let _ = self.take_out();
    }
}

/// A switch that scenarios set up: a bridge beside the nodes, with a port for the link `NAME` of each of some
/// nodes, while this value lives.
pub struct Switch<'a> {
    name: String,
    test: &'a Test<'a>,
    ends: Vec<Plugged<'a>>,
}

impl<'a> Switch<'a> {
    /// Connects these nodes by links of this name, with an MTU in bytes.
    pub fn between(test: &'a Test<'a>, nodes: &[&str], name: &str, mtu: u32) -> Result<Self> {
        let mut switch = Self { name: name.to_owned(), test, ends: Vec::new() };
        switch.on(&format!("ip link add {name} type bridge && ip link set {name} up"))?;
        for node in nodes {
            let (port, wire) = (switch.port(node), test.cluster.service_pid("wire")?.to_string());
            let node = test.cluster.node_named(node)?;
            let end = Plugged { test, node, ends: [name.to_owned(), name.to_owned()] };
            end.ip(&["link", "add", name, "type", "veth", "peer", "name", &port, "netns", &wire])?;
            end.node.plugged().insert(name.to_owned());
            end.set(&[name, "mtu", &mtu.to_string(), "up"])?;
            switch.ends.push(end);
            switch.on(&format!("ip link set {port} mtu {mtu} master {name} up"))?;
        }
        Ok(switch)
    }

    /// The port of a node.
    pub fn port(&self, node: &str) -> String {
        format!("{node}-{}", self.name)
    }

    /// Has the switch drop what comes by the node's port and matches this expression of nftables, and what it
    /// was told before.
    pub fn drops(&self, node: &str, what: &str) -> Result<()> {
        let table = &self.name;
        self.on(&format!(
            "nft -f - <<<'table bridge {table} {{ chain forward {{ type filter hook forward priority 0; iifname {} {what} drop; }}; }}'",
            self.port(node)
        ))
    }

    /// Has the switch drop nothing.
    pub fn drops_nothing(&self) -> Result<()> {
        self.on(&format!("nft delete table bridge {}", self.name))
    }

    /// Runs a command of a shell where the switch is.
    pub fn on(&self, script: &str) -> Result<()> {
        let wire = self.test.cluster.service_pid("wire")?.to_string();
        let mut command = Command::new("nsenter");
        output(command.args(["--target", &wire, "--net", "--", "bash", "-c", script])).map(drop)
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.ends.clear();
        let _ = self.on(&format!("ip link del {0}; nft delete table bridge {0} 2>/dev/null", self.name));
    }
}
