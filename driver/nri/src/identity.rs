//! The name and the place of a plugin.

/// How a plugin introduces itself to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the plugin, for the runtime's log: letters, digits and `-_.+`.
    pub name: &'static str,
    /// Place of the plugin among the node's plugins, at most 99. Runtimes call them in ascending order, and
    /// skip those after one that answers with an error.
    pub index: u8,
}
