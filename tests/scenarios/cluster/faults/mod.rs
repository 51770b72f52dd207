//! Parts of the node or of netclaim die, hang, lie or fill up, and come back.

pub mod agent;
pub mod controller;
pub mod failpoints;
pub mod node;
pub mod plugins;
pub mod reboot;
pub mod runtime_connection;
pub mod state_directory;
