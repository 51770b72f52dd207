//! What the node has, as one value: uplinks, kernel features, and the ClaimNetworks that are meant for it.
//!
//! | module | what it does |
//! |---|---|
//! | `selection` | the [`Inventory`], and which uplink a ClaimNetwork gets; pure |
//! | `node_links` | warnings about ClaimNetworks on links of the node's own traffic; pure |
//! | `uplink`, `uplinks` | a link that pods may use, and the rules for which links these are; pure |
//! | `node_scope` | values for placeholders; pure |
//! | `foreign_use` | use of uplinks by other programs in other namespaces; pure |
//! | `addresses` | the blocks of addresses that the node has, by ClaimNetwork; pure |
//! | `block_watch` | watches these blocks, and notices silence |
//! | `policies`, `objects`, `node_object` | the state of watches of the API server; pure |
//! | `facts`, `facts_dir` | what files on the node state about links and ClaimNetworks, and the watch of them |
//! | `link_watch` | the watch of links |
//! | `shared` | what consecutive inventories share |
//! | `watch` | makes inventories of all that |

mod addresses;
pub(crate) mod block_watch;
pub(crate) mod facts;
mod facts_dir;
#[cfg(test)]
pub(crate) mod fixtures;
pub(crate) mod foreign_use;
mod link_watch;
mod node_links;
mod node_object;
mod node_scope;
mod objects;
mod policies;
mod selection;
mod shared;
mod uplink;
mod uplinks;
pub(crate) mod watch;

pub(crate) use addresses::addresses as addresses_of;
pub use addresses::{Block, NodeAddresses, OwnBlock, OwnBlocks};
pub(crate) use facts::NetworkFacts;
pub(crate) use facts_dir::Version;
pub(crate) use node_scope::node_scope;
pub(crate) use selection::{Inventory, selects};
pub(crate) use uplink::Uplink;
#[cfg(test)]
pub(crate) use uplink::{Port, Stacked};
