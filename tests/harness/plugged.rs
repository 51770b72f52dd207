//! Links that are plugged into the node for a while.

use std::sync::Arc;

use anyhow::Result;

use crate::node::Node;
use crate::test::Test;

/// A link of the node that is plugged in for one scenario, and out at its end: one end of a veth pair with a NIC's
/// name, whose other end is called `far-NAME`.
pub struct Plugged<'a> {
    test: &'a Test<'a>,
    node: Arc<Node>,
    ends: [String; 2],
}

impl<'a> Plugged<'a> {
    /// Plugs it in, and sets both ends up.
    ///
    /// # Errors
    /// When there is such a link.
    pub fn new(test: &'a Test<'a>, name: &str) -> Result<Self> {
        let far = format!("far-{name}");
        test.cluster.on_node(&["ip", "link", "add", name, "type", "veth", "peer", "name", &far])?;
        let plugged = Self { test, node: test.cluster.node(), ends: [name.to_owned(), far] };
        plugged.node.plugged().extend(plugged.ends.clone());
        for end in &plugged.ends {
            test.cluster.on_node(&["ip", "link", "set", end, "up"])?;
        }
        Ok(plugged)
    }

    /// `ip link set WORDS` on the node.
    ///
    /// # Errors
    /// When it fails.
    pub fn set(&self, words: &[&str]) -> Result<()> {
        self.test.cluster.on_node(&[&["ip", "link", "set"], words].concat()).map(drop)
    }
}

impl Drop for Plugged<'_> {
    fn drop(&mut self) {
        let [_, far] = &self.ends;
        // The other end goes with it, wherever it is.
        let _ = self.test.cluster.on_node(&["ip", "link", "del", far]);
        self.node.plugged().retain(|name| !self.ends.contains(name));
    }
}

/// Many links of the node, `eth1000` and up, at once; out again at the end.
pub struct PluggedMany<'a> {
    test: &'a Test<'a>,
    count: usize,
}

impl<'a> PluggedMany<'a> {
    /// Plugs them in, and sets them up.
    ///
    /// # Errors
    /// When there is such a link.
    pub fn new(test: &'a Test<'a>, count: usize) -> Result<Self> {
        let plugged = Self { test, count };
        plugged.each("link add eth$n type veth peer name far-eth$n")?;
        plugged.each("link set far-eth$n up")?;
        plugged.each("link set eth$n up")?;
        Ok(plugged)
    }

    /// Takes them out.
    ///
    /// # Errors
    /// When they are not there.
    pub fn take_out(&self) -> Result<()> {
        self.each("link del far-eth$n")
    }

    fn each(&self, command: &str) -> Result<()> {
        let last = 999 + self.count;
        let script = format!("for n in $(seq 1000 {last}); do echo {command}; done | ip -batch -");
        self.test.cluster.on_node(&["bash", "-c", &script]).map(drop)
    }
}

impl Drop for PluggedMany<'_> {
    fn drop(&mut self) {
        // After `take_out` there are none.
        let _ = self.take_out();
    }
}
